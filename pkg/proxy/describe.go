package proxy

import (
	"context"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// describe answers the calls by which the driver says what it is.
func (s *Server) describe(caller grpc.ServerStream, method string) error {
	f, err := receive(caller)
	if err != nil {
		return err
	}
	reply, err := s.replies.ask(caller.Context(), caller, method, f)
	if err != nil {
		return err
	}
	reply = s.amend(caller.Context(), method, reply)
	return caller.SendMsg(&reply)
}

// amend adds what the gate has to say to a reply of the driver. Fields are appended to the driver's
// bytes: in protobuf's encoding that merges maps and lengthens lists, and leaves everything else,
// known or not, as it was.
func (s *Server) amend(ctx context.Context, method string, reply frame) frame {
	switch method {
	case csi.Node_NodeGetInfo_FullMethodName:
		segments := s.segments(ctx)
		if len(segments) == 0 {
			return reply
		}
		return extend(reply, &csi.NodeGetInfoResponse{AccessibleTopology: &csi.Topology{Segments: segments}})
	case csi.Identity_GetPluginCapabilities_FullMethodName:
		var m csi.GetPluginCapabilitiesResponse
		if unmarshal(reply, &m) != nil || hasTopology(&m) || len(s.segments(ctx)) == 0 {
			return reply
		}
		return extend(reply, &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{
				Type: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS,
			}},
		}}})
	case csi.Node_NodeGetCapabilities_FullMethodName:
		var m csi.NodeGetCapabilitiesResponse
		if !s.config.StorageHealth || unmarshal(reply, &m) != nil || hasStorageHealth(&m) {
			return reply
		}
		return extend(reply, &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{
				Type: csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
			}},
		}}})
	default:
		return reply
	}
}

// segments are those to add to the driver's own; none as long as the driver has not told both its
// name and its topology.
func (s *Server) segments(ctx context.Context) map[string]string {
	if s.topology.Mode == TopologyOff {
		return nil
	}
	if s.replies.driverName() == "" {
		_, _ = s.replies.ask(ctx, nil, csi.Identity_GetPluginInfo_FullMethodName, nil)
	}
	if _, ok := s.replies.driverTopology(); !ok {
		_, _ = s.replies.ask(ctx, nil, csi.Node_NodeGetInfo_FullMethodName, nil)
	}
	return s.Topology()
}

func hasTopology(m *csi.GetPluginCapabilitiesResponse) bool {
	for _, c := range m.GetCapabilities() {
		if c.GetService().GetType() == csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS {
			return true
		}
	}
	return false
}

func hasStorageHealth(m *csi.NodeGetCapabilitiesResponse) bool {
	for _, c := range m.GetCapabilities() {
		if c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH {
			return true
		}
	}
	return false
}

func extend(reply frame, more proto.Message) frame {
	added, err := proto.Marshal(more)
	if err != nil {
		return reply // segments were validated, so there is nothing that cannot be encoded
	}
	return append(reply[:len(reply):len(reply)], added...)
}
