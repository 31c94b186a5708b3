package scenarios

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// forgottenRegistrar has csi-node-driver-registrar run beside the gate, which took its place. The
// registrar is a stand-in.
func forgottenRegistrar(s *harness.Scene) {
	s.Step("driver and gate are deployed", func(ctx context.Context) error {
		return s.Deploy(ctx, harness.Deployment{})
	})
	presence := s.WatchPresence()
	defer presence.Stop()
	s.Step("a registrar takes the socket, the gate lets it and says so", func(ctx context.Context) error {
		began := time.Now()
		if err := s.StartRegistrar(ctx); err != nil {
			return err
		}
		err := harness.Eventually(ctx, harness.Patience, "kubelet has registered the driver with the registrar", func() error {
			log, err := s.RegistrarLog(ctx)
			if err == nil && !strings.Contains(log, "registered: true") {
				err = errors.New("its log does not say so")
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := awaitObstacle(ctx, s, "another process serves"); err != nil {
			return err
		}
		if err := awaitInLog(ctx, s, "gate", otherProcess, 1); err != nil {
			return err
		}
		s.Note("ok, %.1f s missing from CSINode", presence.MissingSince(began).Seconds())
		return s.AwaitRegistered(ctx, true)
	})
	s.Step("the cable is pulled, a pod is refused all the same", func(ctx context.Context) error {
		if err := s.Hardware.Pull(rdmanode.RoCE); err != nil {
			return err
		}
		if err := s.AwaitGate(ctx, false); err != nil {
			return err
		}
		if err := s.CreatePodWithVolume(ctx, "during"); err != nil {
			return err
		}
		return refused(ctx, s, "during")
	})
	s.Step("trouble lasts, and the gate cannot deregister what it has not registered", func(ctx context.Context) error {
		if err := awaitSustained(ctx, s); err != nil {
			return err
		}
		s.Warn("the driver stays in CSINode as long as the registrar lives, and the gate refuses")
		return staysRegistered(ctx, s)
	})
	s.Step("the registrar dies, and the driver leaves CSINode", func(ctx context.Context) error {
		if err := s.KillRegistrar(ctx); err != nil {
			return err
		}
		killed := time.Now()
		err := s.AwaitRegistered(ctx, false)
		s.Note("ok, %.1f s later", time.Since(killed).Seconds())
		return err
	})
	s.Step("the cable is plugged in, the gate registers the driver, the pod runs", func(ctx context.Context) error {
		took, err := awaitAgain(ctx, s, func() error { return s.Hardware.Plug(rdmanode.RoCE) })
		if err != nil {
			return err
		}
		s.Note("ok, registered after %.1f s", took.Seconds())
		return s.AwaitRunning(ctx, "during")
	})
	leave(s, "during")
}
