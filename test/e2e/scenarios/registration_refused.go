package scenarios

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
)

// registrationRefused lets kubelet's registration fail. Up to 1.35 kubelet never tries the same socket
// again by itself.
func registrationRefused(s *harness.Scene) {
	s.Step("the driver cannot answer NodeGetInfo, and is not registered", func(ctx context.Context) error {
		if err := s.SetTrouble("NodeGetInfo Internal"); err != nil {
			return err
		}
		if err := s.ApplyDaemonSet(ctx, harness.Deployment{Driver: []string{"--trouble-file=" + harness.TroubleFile}}); err != nil {
			return err
		}
		if err := s.AwaitDaemonSet(ctx); err != nil {
			return err
		}
		if err := awaitObstacle(ctx, s, "NodeGetInfo"); err != nil {
			return err
		}
		registered, err := s.Registered(ctx)
		if err == nil && registered {
			err = errors.New("the driver is in CSINode")
		}
		return err
	})
	s.Step("it does not answer, and is not registered", func(ctx context.Context) error {
		if err := s.SetTrouble("NodeGetInfo silence"); err != nil {
			return err
		}
		return awaitObstacle(ctx, s, "context deadline exceeded")
	})
	s.Step("it answers, and is registered", func(ctx context.Context) error {
		if err := s.EndTrouble(); err != nil {
			return err
		}
		ended := time.Now()
		err := s.AwaitRegistered(ctx, true)
		s.Note("ok, after %.1f s", time.Since(ended).Seconds())
		return err
	})
	presence := s.WatchPresence()
	defer presence.Stop()
	s.Step("a pod with a volume runs", func(ctx context.Context) error { return runPod(ctx, s, "before") })
	s.Step("the driver is silent when kubelet registers it: the gate answers", func(ctx context.Context) error {
		if err := s.SetTrouble("NodeGetInfo silence"); err != nil {
			return err
		}
		took, err := awaitAgain(ctx, s, func() error { return os.Remove(s.Node.Path(harness.RegistrationSocket)) })
		s.Note("ok, registered after %.1f s", took.Seconds())
		return err
	})
	s.Step("it fails when kubelet registers it: healed by fresh sockets", func(ctx context.Context) error {
		return failAndHeal(ctx, s, presence,
			func() error { return s.SetTrouble("NodeGetInfo Internal") },
			s.EndTrouble)
	})
	s.Step("there is no API server when kubelet registers it: healed", func(ctx context.Context) error {
		return failAndHeal(ctx, s, presence,
			func() error { s.Node.StopAPIServer(); return nil },
			func() error { return s.Node.StartAPIServer(ctx) })
	})
	s.Step("the pod that ran runs on", func(ctx context.Context) error { return undisturbed(ctx, s, "before") })
	leave(s, "before")
}

// registrationFailures counts the registrations that kubelet has told the gate to have failed.
const registrationFailures = "csi_rdma_gate_registration_failures_total"

// failAndHeal has kubelet register the driver while it cannot, until it has failed with the gate's
// first fresh socket too, and then sees it succeed.
func failAndHeal(ctx context.Context, s *harness.Scene, presence *harness.Presence, fail, heal func() error) error {
	was, err := metric(ctx, s, registrationFailures)
	if err != nil {
		return err
	}
	began := time.Now()
	took, err := awaitAgain(ctx, s, func() error {
		if err := fail(); err != nil {
			return err
		}
		if err := os.Remove(s.Node.Path(harness.RegistrationSocket)); err != nil {
			return err
		}
		if _, err := awaitMetric(ctx, s, registrationFailures, was+2); err != nil {
			return err
		}
		if err := awaitObstacle(ctx, s, "kubelet did not register the driver"); err != nil {
			return err
		}
		return heal()
	})
	if err != nil {
		return err
	}
	failures, err := metric(ctx, s, registrationFailures)
	s.Note("ok, %.1f s after its cause, %d failures, %.1f s missing from CSINode",
		took.Seconds(), failures-was, presence.MissingSince(began).Seconds())
	return err
}
