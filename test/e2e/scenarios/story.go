// Package scenarios has what is seen on a node, a file for each group.
package scenarios

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// Story is what the project is for: a cable is pulled, and everybody who looks is told.
func Story() []harness.Scenario {
	return []harness.Scenario{
		{Name: "story", Play: drained},
		{Name: "always", Play: always},
	}
}

// drained is the story with the default policy.
func drained(s *harness.Scene) {
	s.Step("driver and gate are deployed", func(ctx context.Context) error {
		return s.Deploy(ctx, harness.Deployment{})
	})
	s.Step("a pod with a volume runs", func(ctx context.Context) error { return runPod(ctx, s, "before") })
	s.Step("the cable is pulled, the gate closes", func(ctx context.Context) error {
		if err := s.Hardware.Pull(rdmanode.RoCE); err != nil {
			return err
		}
		return s.AwaitGate(ctx, false)
	})
	s.Step("a new pod's events tell why, folded into one", func(ctx context.Context) error {
		if err := s.CreatePodWithVolume(ctx, "during"); err != nil {
			return err
		}
		return refused(ctx, s, "during")
	})
	s.Step("the pod that ran runs on", func(ctx context.Context) error { return undisturbed(ctx, s, "before") })
	s.Step("the trouble lasts, the driver stays in CSINode", func(ctx context.Context) error {
		if err := awaitSustained(ctx, s); err != nil {
			return err
		}
		return staysRegistered(ctx, s)
	})
	s.Step("deleted, the pod ends and its volume is unmounted", func(ctx context.Context) error {
		if err := s.DeletePod(ctx, "before"); err != nil {
			return err
		}
		if err := s.AwaitGone(ctx, "pod", "before"); err != nil {
			return err
		}
		return awaitUnmounted(ctx, s, "before")
	})
	s.Step("drained, the driver leaves CSINode", func(ctx context.Context) error { return s.AwaitRegistered(ctx, false) })
	var plugged time.Time
	s.Step("the cable is plugged in, the driver is back in CSINode", func(ctx context.Context) error {
		plugged = time.Now()
		if err := s.Hardware.Plug(rdmanode.RoCE); err != nil {
			return err
		}
		return s.AwaitRegistered(ctx, true)
	})
	s.Step("the pod that waited runs", func(ctx context.Context) error {
		if err := s.AwaitRunning(ctx, "during"); err != nil {
			return err
		}
		s.Note("ok, %.0f s after the cable", time.Since(plugged).Seconds())
		return undisturbed(ctx, s, "during")
	})
}

// always shows what the policy of the same name does to pods.
func always(s *harness.Scene) {
	s.Step("deployed with --deregister-policy=always", func(ctx context.Context) error {
		return s.Deploy(ctx, harness.Deployment{Gate: []string{"--deregister-policy=always"}})
	})
	s.Step("a pod with a volume runs", func(ctx context.Context) error { return runPod(ctx, s, "before") })
	s.Step("the cable is pulled, the driver leaves CSINode at once", func(ctx context.Context) error {
		if err := s.Hardware.Pull(rdmanode.RoCE); err != nil {
			return err
		}
		return s.AwaitRegistered(ctx, false)
	})
	s.Step("the pod that ran runs on", func(ctx context.Context) error { return undisturbed(ctx, s, "before") })
	var deleted time.Time
	s.Step("deleted, it stays Terminating", func(ctx context.Context) error {
		size, err := s.Node.LogSize("kubelet")
		if err != nil {
			return err
		}
		deleted = time.Now()
		if err := s.DeletePod(ctx, "before"); err != nil {
			return err
		}
		// An outage of a quarter of a minute: the back-off is at 16 s then.
		if err := awaitUnmountTrouble(ctx, s, "before", size, 6); err != nil {
			return err
		}
		pod, err := s.Pod(ctx, "before")
		if err != nil {
			return err
		}
		if pod.DeletionTimestamp == nil {
			return errors.New("the pod is not being deleted")
		}
		s.Warn("stuck, kubelet cannot unmount through a driver that it does not know")
		return nil
	})
	var back time.Time
	s.Step("the cable is plugged in, the driver is back in CSINode", func(ctx context.Context) error {
		if err := s.Hardware.Plug(rdmanode.RoCE); err != nil {
			return err
		}
		err := s.AwaitRegistered(ctx, true)
		back = time.Now()
		return err
	})
	s.Step("the pod is released", func(ctx context.Context) error {
		if err := s.AwaitGone(ctx, "pod", "before"); err != nil {
			return err
		}
		if err := awaitUnmounted(ctx, s, "before"); err != nil {
			return err
		}
		s.Warn("%.0f s after the driver was back, %.0f s after it was deleted",
			time.Since(back).Seconds(), time.Since(deleted).Seconds())
		return nil
	})
}

// runPod makes a pod with a volume, and sees that both work.
func runPod(ctx context.Context, s *harness.Scene, name string) error {
	if err := s.CreatePodWithVolume(ctx, name); err != nil {
		return err
	}
	if err := s.AwaitRunning(ctx, name); err != nil {
		return err
	}
	points, err := s.Mounted(name)
	if err != nil {
		return err
	}
	if len(points) != 2 {
		return fmt.Errorf("the volume is mounted at %q, not at a staging and a publish path", points)
	}
	return undisturbed(ctx, s, name)
}

// undisturbed sees that the pod has run since it was made, and has its volume.
func undisturbed(ctx context.Context, s *harness.Scene, name string) error {
	pod, err := s.Pod(ctx, name)
	if err != nil {
		return err
	}
	if pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		return fmt.Errorf("pod %s is %s, its container was restarted %d times",
			name, pod.Status.Phase, pod.Status.ContainerStatuses[0].RestartCount)
	}
	owner, err := s.Owner(ctx, name)
	if err == nil && owner != name {
		err = fmt.Errorf("in its volume stands %q, not the pod's name", owner)
	}
	return err
}

// refused waits until kubelet has tried at least twice to mount the pod's volume, and sees that its
// user is told once, and told what matters.
func refused(ctx context.Context, s *harness.Scene, pod string) error {
	var event corev1.Event
	err := harness.Eventually(ctx, harness.Patience, "pod "+pod+" has a refusal that has come twice", func() error {
		events, err := s.Events(ctx, pod, "FailedMount")
		if err != nil {
			return err
		}
		var refusals []corev1.Event
		for _, e := range events {
			if strings.Contains(e.Message, "RDMA not usable") {
				refusals = append(refusals, e)
			}
		}
		if len(refusals) != 1 || refusals[0].Count < 2 {
			return fmt.Errorf("%d events %+v", len(refusals), refusals)
		}
		event = refusals[0]
		return nil
	})
	if err != nil {
		return err
	}
	for _, part := range []string{
		`MountVolume.MountDevice failed for volume "` + pod + `"`, "code = FailedPrecondition",
		rdmanode.RoCE + "/1 PhysLinkDown", "the CSI driver was not called", "retried automatically",
	} {
		if !strings.Contains(event.Message, part) {
			return fmt.Errorf("the event does not say %q: %s", part, event.Message)
		}
	}
	// What people type. It breaks no lines.
	described, err := s.Kubectl(ctx, "describe", "pod", pod)
	if err == nil && strings.Count(described, event.Message) != 1 {
		err = fmt.Errorf("kubectl describe does not show the refusal once:\n%s", described)
	}
	s.Note("ok, %d refusals in one event: FailedPrecondition, %s/1 PhysLinkDown", event.Count, rdmanode.RoCE)
	return err
}

// awaitUnmounted waits until the volume is mounted nowhere on the node.
func awaitUnmounted(ctx context.Context, s *harness.Scene, volume string) error {
	return harness.Eventually(ctx, harness.Patience, "volume "+volume+" is unmounted", func() error {
		points, err := s.Mounted(volume)
		if err == nil && len(points) > 0 {
			err = fmt.Errorf("it is mounted at %q", points)
		}
		return err
	})
}

// awaitUnmountTrouble waits until kubelet has tried so many times, since its log had that size, to
// unmount the volume, and each time missed the driver.
func awaitUnmountTrouble(ctx context.Context, s *harness.Scene, volume string, since int64, times int) error {
	return harness.Eventually(ctx, harness.BackOff, "kubelet misses the driver for an unmount", func() error {
		log, err := s.Node.LogSince("kubelet", since)
		if err != nil {
			return err
		}
		found := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, "TearDownAt") && strings.Contains(line, harness.DriverName+"^"+volume) &&
				strings.Contains(line, "not found in the list of registered CSI drivers") {
				found++
			}
		}
		if found < times {
			return fmt.Errorf("its log says so %d times, not %d", found, times)
		}
		return nil
	})
}
