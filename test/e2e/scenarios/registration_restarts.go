package scenarios

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// kubeletRestarts restarts kubelet while the gate is open and while it is closed.
func kubeletRestarts(s *harness.Scene) {
	s.Step("driver and gate are deployed", func(ctx context.Context) error {
		return s.Deploy(ctx, harness.Deployment{})
	})
	presence := s.WatchPresence()
	defer presence.Stop()
	s.Step("a pod with a volume runs", func(ctx context.Context) error { return runPod(ctx, s, "before") })
	s.Step("kubelet restarts, the pod is not touched", func(ctx context.Context) error {
		return kubeletRestartSpares(ctx, s, presence)
	})
	s.Step("the cable is pulled, a new pod waits", func(ctx context.Context) error {
		if err := s.Hardware.Pull(rdmanode.RoCE); err != nil {
			return err
		}
		if err := s.AwaitGate(ctx, false); err != nil {
			return err
		}
		if err := s.CreatePodWithVolume(ctx, "waiting"); err != nil {
			return err
		}
		return refused(ctx, s, "waiting")
	})
	s.Step("trouble lasts, kubelet restarts: both pods as before", func(ctx context.Context) error {
		if err := awaitSustained(ctx, s); err != nil {
			return err
		}
		if err := kubeletRestartSpares(ctx, s, presence); err != nil {
			return err
		}
		was, err := metric(ctx, s, refusals)
		if err != nil {
			return err
		}
		if _, err := awaitMetric(ctx, s, refusals, was+1); err != nil {
			return err
		}
		begun, err := timesInLog(ctx, s, "driver", "NodeStageVolume waiting")
		if err == nil && begun > 0 {
			err = errors.New("the driver was called for the pod that waits")
		}
		return err
	})
	s.Step("the cable is plugged in, the pod that waited runs", func(ctx context.Context) error {
		plugged := time.Now()
		if err := s.Hardware.Plug(rdmanode.RoCE); err != nil {
			return err
		}
		if err := s.AwaitRunning(ctx, "waiting"); err != nil {
			return err
		}
		s.Note("ok, %.0f s after the cable", time.Since(plugged).Seconds())
		return undisturbed(ctx, s, "waiting")
	})
	leave(s, "before", "waiting")
}

// refusals counts the calls that the gate refuses while the cable is out.
const refusals = `csi_rdma_gate_refusals_total{code="FailedPrecondition",method="NodeStageVolume",reason="PhysLinkDown"}`

// kubeletRestartSpares restarts kubelet, and sees that it registers the driver again and repeats the calls
// for the pod "before", which runs on.
func kubeletRestartSpares(ctx context.Context, s *harness.Scene, presence *harness.Presence) error {
	const repeated = "NodePublishVolume before ok"
	was, err := timesInLog(ctx, s, "driver", repeated)
	if err != nil {
		return err
	}
	began := time.Now()
	took, err := awaitAgain(ctx, s, func() error {
		s.Node.StopKubelet()
		return s.Node.StartKubelet()
	})
	if err != nil {
		return err
	}
	if err := awaitInLog(ctx, s, "driver", repeated, was+1); err != nil {
		return err
	}
	s.Note("ok, registered %.1f s after kubelet's start, %.1f s missing from CSINode", took.Seconds(), presence.MissingSince(began).Seconds())
	return undisturbed(ctx, s, "before")
}

// surge replaces the driver's pod without a gap: for a while there are two.
func surge(ds *appsv1.DaemonSet) {
	one, none := intstr.FromInt32(1), intstr.FromInt32(0)
	ds.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{
		Type:          appsv1.RollingUpdateDaemonSetStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: &one, MaxUnavailable: &none},
	}
	ds.Spec.MinReadySeconds = 3 // a while that can be seen
}

// gateAndDriverRestart kills the gate and the driver, removes their sockets and replaces both.
func gateAndDriverRestart(s *harness.Scene) {
	s.Step("driver and gate are deployed", func(ctx context.Context) error {
		return s.Deploy(ctx, harness.Deployment{Change: surge})
	})
	presence := s.WatchPresence()
	defer presence.Stop()
	s.Step("a pod with a volume runs", func(ctx context.Context) error { return runPod(ctx, s, "before") })
	s.Step("the gate is killed while a pod is made, and removes its dead socket", func(ctx context.Context) error {
		return killWhilePodIsMade(ctx, s, presence, "gate", func(time.Time) error {
			if err := awaitInLog(ctx, s, "gate", deadSocketRemoved, 1); err != nil {
				return err
			}
			return awaitInLog(ctx, s, "gate", kubeletsWord, 1)
		})
	})
	s.Step("the driver is killed while a pod is made, and stays registered", func(ctx context.Context) error {
		return killWhilePodIsMade(ctx, s, presence, "driver", func(killed time.Time) error {
			if missing := presence.MissingSince(killed); missing > 0 {
				return fmt.Errorf("it was missing from CSINode for %s", missing)
			}
			return nil
		})
	})
	s.Step("the gate's socket is removed and comes back", func(ctx context.Context) error {
		took, err := removeAndAwait(ctx, s, harness.PluginDir+"/csi.sock")
		if err != nil {
			return err
		}
		return errors.Join(noteRestored(s, took, ""), runPod(ctx, s, "after-removal"))
	})
	s.Step("the registration socket is removed and comes back", func(ctx context.Context) error {
		began := time.Now()
		var restored time.Duration
		_, err := awaitAgain(ctx, s, func() (err error) {
			restored, err = removeAndAwait(ctx, s, harness.RegistrationSocket)
			return err
		})
		return errors.Join(err, noteRestored(s, restored, fmt.Sprintf(", %.1f s missing from CSINode", presence.MissingSince(began).Seconds())))
	})
	s.Step("upgraded by surge while a pod is made", func(ctx context.Context) error { return upgrade(ctx, s, presence) })
	pods := []string{"before", "gate-killed", "driver-killed", "after-removal", "upgrading"}
	s.Step("no pod was touched", func(ctx context.Context) error {
		for _, pod := range pods {
			if err := undisturbed(ctx, s, pod); err != nil {
				return err
			}
		}
		return nil
	})
	leave(s, pods...)
}

// restoreLimit is the time within which the gate puts back a socket that was removed, and busyLimit the
// time within which even a very busy machine lets it.
const (
	restoreLimit = 5 * time.Second
	busyLimit    = 30 * time.Second
)

func noteRestored(s *harness.Scene, took time.Duration, more string) error {
	switch {
	case took > busyLimit:
		return fmt.Errorf("only back after %.1f s%s", took.Seconds(), more)
	case took > restoreLimit:
		s.Warn("only back after %.1f s%s; this machine may be too busy to tell", took.Seconds(), more)
	default:
		s.Note("ok, back after %.1f s%s", took.Seconds(), more)
	}
	return nil
}

// killWhilePodIsMade kills a container of the driver's pod and makes a pod, which runs once the
// container is back. back takes the time of the death, and sees that it is back for kubelet too.
func killWhilePodIsMade(ctx context.Context, s *harness.Scene, presence *harness.Presence, container string, back func(time.Time) error) error {
	before, err := s.Container(ctx, container)
	if err != nil {
		return err
	}
	killed := time.Now()
	if err := s.Kill(ctx, container); err != nil {
		return err
	}
	pod := container + "-killed"
	if err := s.CreatePodWithVolume(ctx, pod); err != nil {
		return err
	}
	err = harness.Eventually(ctx, harness.BackOff, container+" is started again", func() error {
		now, err := s.Container(ctx, container)
		if err == nil && (now.RestartCount == before.RestartCount || now.State.Running == nil) {
			err = fmt.Errorf("%d restarts, %+v", now.RestartCount, now.State)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := back(killed); err != nil {
		return err
	}
	took := time.Since(killed)
	if err := s.AwaitRunning(ctx, pod); err != nil {
		return err
	}
	s.Note("ok, back after %.1f s, pod runs after %.1f s, %.1f s missing from CSINode",
		took.Seconds(), time.Since(killed).Seconds(), presence.MissingSince(killed).Seconds())
	return stillRegistered(ctx, s)
}

// upgrade replaces the driver's pod by surge. Both gates want the same sockets, and the same port of
// the node's network.
func upgrade(ctx context.Context, s *harness.Scene, presence *harness.Presence) error {
	old, err := s.DriverPod(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	// Another flag stands for another version.
	if err := s.ApplyDaemonSet(ctx, harness.Deployment{Change: surge, Gate: []string{"--v=1"}}); err != nil {
		return err
	}
	if err := s.CreatePodWithVolume(ctx, "upgrading"); err != nil {
		return err
	}
	if err := s.AwaitDaemonSet(ctx); err != nil {
		return err
	}
	err = harness.Eventually(ctx, harness.Patience, "the old pod is gone", func() error {
		pod, err := s.DriverPod(ctx)
		if err == nil && pod == old {
			err = errors.New("it is the only one")
		}
		return err
	})
	if err != nil {
		return err
	}
	// This is how the new gate says that it met the old one, and let it be.
	if err := awaitInLog(ctx, s, "gate", otherProcess, 1); err != nil {
		return err
	}
	if err := awaitInLog(ctx, s, "gate", kubeletsWord, 1); err != nil {
		return err
	}
	if err := s.AwaitRunning(ctx, "upgrading"); err != nil {
		return err
	}
	took, missing := time.Since(began), presence.MissingSince(began)
	// The new gate gets the port once the old one has left it.
	if err := s.AwaitGate(ctx, true); err != nil {
		return err
	}
	s.Note("ok, after %.1f s, %.1f s missing from CSINode", took.Seconds(), missing.Seconds())
	if n, err := timesInLog(ctx, s, "gate", "socket had been removed"); err != nil || n > 0 {
		return errors.Join(err, fmt.Errorf("the old gate has removed the new one's sockets: %d times", n))
	}
	return stillRegistered(ctx, s)
}
