package proxy

import (
	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// maxBackends bounds an answer to NodeGetStorageHealth: kubelet puts it into CSINode's status.
const maxBackends = 16

type backendHealth = csi.NodeGetStorageHealthResponse_StorageBackendHealth

// storageHealth answers NodeGetStorageHealth (CSI 1.13, alpha) with the driver's entries and the
// gate's. A driver that does not know the call has none.
func (s *Server) storageHealth(caller grpc.ServerStream, method string) error {
	request, err := receive(caller)
	if err != nil {
		return err
	}
	ctx, cancel := s.limit(caller.Context())
	defer cancel()
	reply, err := s.driver.call(ctx, caller, method, request)
	if err != nil && status.Code(err) != codes.Unimplemented {
		return err
	}
	var own csi.NodeGetStorageHealthResponse
	_ = unmarshal(reply, &own)
	reply = extend(reply, &csi.NodeGetStorageHealthResponse{
		BackendHealth: backends(s.config.Gate.Health(), own.GetBackendHealth()),
	})
	return caller.SendMsg(&reply)
}

// backends has one entry for each Reason with which something selected fails. own are those that
// are there already: status and reason may not occur twice.
func backends(h *probe.Health, own []*backendHealth) []*backendHealth {
	kind := csi.StorageHealthErrorType_STORAGE_DEGRADED
	if h.Verdict == probe.Unhealthy {
		kind = csi.StorageHealthErrorType_STORAGE_UNREACHABLE
	}
	byReason := map[string]*backendHealth{}
	for _, b := range own {
		if b.GetStatus() == kind {
			byReason[b.GetReason()] = nil
		}
	}
	var added []*backendHealth
	for _, t := range h.Troubles() {
		if t.Reason.Verdict() != probe.Unhealthy {
			continue
		}
		switch b, known := byReason[string(t.Reason)]; {
		case !known && len(own)+len(added) < maxBackends:
			b = &backendHealth{Status: kind, Reason: string(t.Reason), Message: shorten(t.String(), maxMessage)}
			byReason[b.Reason], added = b, append(added, b)
		case b != nil:
			b.Message = shorten(b.Message+", "+t.String(), maxMessage)
		}
	}
	return added
}
