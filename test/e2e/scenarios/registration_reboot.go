package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
)

// reboot cuts the node's power. Both sockets stay behind without anybody listening, and kubelet finds
// the registration socket before the gate is there to remove it. CSINode is no witness here: it has the
// driver all the time.
func reboot(s *harness.Scene) {
	s.Step("driver and gate are deployed", func(ctx context.Context) error {
		return s.Deploy(ctx, harness.Deployment{})
	})
	s.Step("a pod with a volume runs", func(ctx context.Context) error { return runPod(ctx, s, "before") })
	var seen int64 // of kubelet's log
	s.Step("the power is cut, dead sockets stay", func(ctx context.Context) error {
		if err := s.Node.CutPower(ctx); err != nil {
			return err
		}
		for _, socket := range []string{harness.RegistrationSocket, harness.PluginDir + "/csi.sock"} {
			if _, err := os.Lstat(s.Node.Path(socket)); err != nil {
				return err
			}
		}
		// The driver's pod shall come late.
		if err := s.LoseDaemonSet(ctx); err != nil {
			return err
		}
		var err error
		seen, err = s.Node.LogSize("kubelet")
		return err
	})
	var booted time.Time
	s.Step("kubelet is back and tries the dead socket", func(ctx context.Context) error {
		booted = time.Now()
		if err := s.Node.StartKubelet(); err != nil {
			return err
		}
		wait, err := awaitDeadSocketTried(ctx, s, seen)
		s.Note("ok, after %.1f s it backs off for %s", time.Since(booted).Seconds(), wait)
		return err
	})
	s.Step("the driver's pod is back, the driver is registered", func(ctx context.Context) error {
		if err := s.ApplyDaemonSet(ctx, harness.Deployment{}); err != nil {
			return err
		}
		if err := s.AwaitDaemonSet(ctx); err != nil {
			return err
		}
		ready := time.Now()
		if err := awaitInLog(ctx, s, "gate", deadSocketRemoved, 1); err != nil {
			return err
		}
		if err := awaitInLog(ctx, s, "gate", kubeletsWord, 1); err != nil {
			return err
		}
		s.Note("ok, %.1f s after its pod was ready, %.1f s after kubelet's start", time.Since(ready).Seconds(), time.Since(booted).Seconds())
		// A kubelet that was still dialling the dead socket may have got through to the live one, and then
		// has to register once more what it sees to be another socket.
		return s.AwaitRegistered(ctx, true)
	})
	s.Step("the pod runs again and has its volume", func(ctx context.Context) error {
		if err := awaitRestarted(ctx, s, "before"); err != nil {
			return err
		}
		s.Note("ok, %.1f s after kubelet's start", time.Since(booted).Seconds())
		owner, err := s.Owner(ctx, "before")
		if err == nil && owner != "before" {
			err = fmt.Errorf("in its volume stands %q", owner)
		}
		return err
	})
	leave(s, "before")
}

// awaitDeadSocketTried waits until kubelet has given up on the registration socket for the first time,
// and returns what it says of when it tries again. Each attempt takes it 10 s.
func awaitDeadSocketTried(ctx context.Context, s *harness.Scene, seen int64) (wait string, err error) {
	return wait, harness.Eventually(ctx, harness.Patience, "kubelet fails at the dead registration socket", func() error {
		log, err := s.Node.LogSince("kubelet", seen)
		if err != nil {
			return err
		}
		for line := range strings.Lines(log) {
			if _, after, ok := strings.Cut(line, "durationBeforeRetry "); ok && strings.Contains(line, harness.RegistrationSocket) {
				wait, _, _ = strings.Cut(after, ")")
				return nil
			}
		}
		return errors.New("its log does not say so")
	})
}

// awaitRestarted waits until the pod's container runs for the second time.
func awaitRestarted(ctx context.Context, s *harness.Scene, name string) error {
	return harness.Eventually(ctx, harness.BackOff, "pod "+name+" runs again", func() error {
		pod, err := s.Pod(ctx, name)
		if err != nil {
			return err
		}
		if c := pod.Status.ContainerStatuses[0]; pod.Status.Phase != corev1.PodRunning || !c.Ready || c.RestartCount == 0 {
			return fmt.Errorf("it is %s, its container was restarted %d times", pod.Status.Phase, c.RestartCount)
		}
		return nil
	})
}
