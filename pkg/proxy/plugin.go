package proxy

import (
	"context"
	"errors"
	"fmt"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"
)

// DriverName asks the driver for its name, or returns the one it gave before.
func (s *Server) DriverName(ctx context.Context) (string, error) {
	if name := s.replies.driverName(); name != "" {
		return name, nil
	}
	if err := s.learn(ctx, csi.Identity_GetPluginInfo_FullMethodName); err != nil {
		return "", err
	}
	if name := s.replies.driverName(); name != "" {
		return name, nil
	}
	return "", fmt.Errorf("the CSI driver at %s gives no name in GetPluginInfo", s.config.DriverAddress)
}

// Ready asks for what kubelet asks at registration and returns nil once the driver has answered all
// of it: from then on the gate can always answer.
func (s *Server) Ready(ctx context.Context) error {
	for _, method := range []string{
		csi.Identity_GetPluginInfo_FullMethodName,
		csi.Node_NodeGetCapabilities_FullMethodName,
		csi.Node_NodeGetInfo_FullMethodName,
	} {
		if _, ok := s.replies.recall(method); ok {
			continue
		}
		if err := s.learn(ctx, method); err != nil {
			return err
		}
	}
	return nil
}

// learn fetches the reply of one method. The request of each is an empty message.
func (s *Server) learn(ctx context.Context, method string) error {
	if _, err := s.replies.fetch(ctx, nil, method, nil); err != nil {
		return fmt.Errorf("%s: %s", method, status.Convert(err).Message())
	}
	return nil
}

// Volumes counts the driver's volumes on this node: those with which kubelet has begun and not
// ended, and calls that are with the driver. A file that cannot be read counts. An error means
// that there may be more.
func (s *Server) Volumes() (int, error) {
	attempts, err := listAttempts(s.config.KubeletDir)
	n := s.volumes.inFlight()
	driver := s.replies.driverName()
	for i := range attempts {
		if a := &attempts[i]; (a.unreadable || a.driver == driver) && a.live() {
			n++
		}
	}
	return n, err
}

// Undone receives after an Unstage or Unpublish has succeeded; several may be folded into one.
func (s *Server) Undone() <-chan struct{} { return s.undone }

// FreezeTopology holds the injected segments as they are until ThawTopology, and returns them.
func (s *Server) FreezeTopology() map[string]string {
	own, _ := s.replies.driverTopology()
	s.topology.freeze(s.replies.driverName(), own)
	return s.Topology()
}

// TopologyHasGrown says that the hardware now gives all of the frozen segments and more.
func (s *Server) TopologyHasGrown() bool {
	own, ok := s.replies.driverTopology()
	return ok && s.topology.grown(s.replies.driverName(), own)
}

// Topology returns the segments that NodeGetInfo adds to the driver's own.
func (s *Server) Topology() map[string]string {
	own, ok := s.replies.driverTopology()
	if !ok {
		return nil
	}
	return s.topology.inject(s.replies.driverName(), own)
}

// ThawTopology lets the injected segments follow the hardware again.
func (s *Server) ThawTopology() { s.topology.thaw() }

// RefuseTopologyKey leaves a key out of the injected segments from now on, because kubelet does not
// accept it. It returns false if the key is not an injected one.
func (s *Server) RefuseTopologyKey(key string) bool {
	own, _ := s.replies.driverTopology()
	return s.topology.refuse(s.replies.driverName(), own, key)
}

// Probe asks the driver whether it is ready, as livenessprobe does. The answer is never remembered.
func (s *Server) Probe(ctx context.Context) error {
	reply, err := s.driver.call(ctx, nil, csi.Identity_Probe_FullMethodName, nil)
	if err != nil {
		return err
	}
	var m csi.ProbeResponse
	if err := unmarshal(reply, &m); err != nil {
		return fmt.Errorf("the driver's reply to Probe cannot be decoded: %w", err)
	}
	if m.GetReady() != nil && !m.GetReady().GetValue() {
		return errors.New("the driver is not ready")
	}
	return nil
}
