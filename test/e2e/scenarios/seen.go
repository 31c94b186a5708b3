package scenarios

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/parts"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// Seen is what somebody sees who does not know the gate, and looks where one looks first.
func Seen() []harness.Scenario {
	return []harness.Scenario{{Name: "seen", Play: seen}}
}

// seen has one cable of two pulled, then both.
func seen(s *harness.Scene) {
	const (
		roce       = rdmanode.RoCE + "/1 PhysLinkDown"
		infiniband = rdmanode.InfiniBand + "/1 PhysLinkDown"
	)
	s.Step("deployed with two devices, of which one suffices", func(ctx context.Context) error {
		return s.Deploy(ctx, harness.Deployment{
			// Never, since kubelet asks only registered drivers for the health of their storage. Kubelets
			// that do not know of it have to take the driver all the same.
			Gate:   []string{"--rdma-require=any", "--deregister-policy=never", "--storage-health"},
			Change: selectDevices(rdmanode.RoCE, rdmanode.InfiniBand),
		})
	})
	s.Step("one cable is pulled: the gate stays open, /status names the port and what to do", func(ctx context.Context) error {
		if err := s.Hardware.Pull(rdmanode.RoCE); err != nil {
			return err
		}
		return awaitStatus(ctx, s, true, roce)
	})
	storageHealth(s, storagev1.StorageDegraded, roce)
	s.Step("the other one too: the gate closes, /status names both", func(ctx context.Context) error {
		if err := s.Hardware.Pull(rdmanode.InfiniBand); err != nil {
			return err
		}
		return awaitStatus(ctx, s, false, roce, infiniband)
	})
	s.Step("kubectl describe pod names both, and what comes next", func(ctx context.Context) error {
		if err := s.CreatePodWithVolume(ctx, "during"); err != nil {
			return err
		}
		return awaitDescribed(ctx, s, "during",
			"on node "+node.Name, roce, infiniband, "the CSI driver was not called", "retried automatically")
	})
	s.Step("the gate's own probe, by kubectl exec, names both and what to do", func(ctx context.Context) error {
		return probed(ctx, s, roce, infiniband, "Look at the cable")
	})
	storageHealth(s, storagev1.StorageUnreachable, roce, infiniband)
	s.Step("both are plugged in: the gate opens, /status has nothing to do", func(ctx context.Context) error {
		if err := errors.Join(s.Hardware.Plug(rdmanode.RoCE), s.Hardware.Plug(rdmanode.InfiniBand)); err != nil {
			return err
		}
		return awaitStatus(ctx, s, true)
	})
	storageHealth(s, "")
	s.Step("the pod that waited runs", func(ctx context.Context) error { return s.AwaitRunning(ctx, "during") })
}

// awaitStatus waits until /status says whether the gate is open, names the troubles, and tells in one
// step what to do about them and where to read on. Without troubles there is nothing to do.
func awaitStatus(ctx context.Context, s *harness.Scene, open bool, troubles ...string) error {
	var status harness.GateStatus
	awaited := fmt.Sprintf("/status says open: %t, and names %q", open, troubles)
	err := harness.Eventually(ctx, harness.Patience, awaited, func() error {
		var err error
		if status, err = s.GateStatus(ctx); err != nil {
			return err
		}
		causes := strings.Join(status.Gate.Cause, "\n")
		missing := func(t string) bool {
			return !strings.Contains(status.Probe.Message, t) || !open && !strings.Contains(causes, t)
		}
		if status.Gate.Open != open || slices.ContainsFunc(troubles, missing) || (len(status.Next) == 0) != (len(troubles) == 0) {
			return fmt.Errorf("it says %+v", status)
		}
		return nil
	})
	if err != nil || len(troubles) == 0 {
		return err
	}
	step := status.Next[0]
	if len(status.Next) > 1 || step.About != "PhysLinkDown" || step.Do == "" || !strings.HasSuffix(step.Documentation, "#physlinkdown") {
		return fmt.Errorf("what it says is next: %+v", status.Next)
	}
	s.Note("ok, next: %s", step.Do)
	return nil
}

// awaitDescribed waits until what kubectl describes of the pod has all of the parts.
func awaitDescribed(ctx context.Context, s *harness.Scene, pod string, parts ...string) error {
	return harness.Eventually(ctx, harness.Patience, fmt.Sprintf("kubectl describe pod %s says %q", pod, parts), func() error {
		text, err := s.Kubectl(ctx, "describe", "pod", pod)
		if err == nil && slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) }) {
			_, events, _ := strings.Cut(text, "\nEvents:")
			err = fmt.Errorf("the events are:%s", events)
		}
		return err
	})
}

// probed runs the gate's own probe in its container and sees that it says all of the parts.
func probed(ctx context.Context, s *harness.Scene, parts ...string) error {
	pod, err := s.DriverPod(ctx)
	if err != nil {
		return err
	}
	text, err := s.Kubectl(ctx, "--namespace=kube-system", "exec", pod, "--container=gate", "--",
		"/csi-rdma-gate", "probe", "--host-root=/host", "--rdma-device="+rdmanode.RoCE+","+rdmanode.InfiniBand)
	// kubectl passes on the exit status of the probe, which is 1 for unhealthy.
	if err == nil || !strings.Contains(err.Error(), "exit code 1") {
		return fmt.Errorf("it did not end with 1: %w\n%s", err, text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return fmt.Errorf("it does not say %q:\n%s", part, text)
		}
	}
	return nil
}

// storageHealth is a step on a node that tells of the storage's health in CSINode's status: there has to
// be one condition of the driver's, with the troubles in its message, or none if status is empty.
func storageHealth(s *harness.Scene, status storagev1.StorageHealthStatusType, troubles ...string) {
	if !s.Node.Has(parts.StorageHealth) {
		return
	}
	name := "CSINode's status has no condition of the driver's"
	if status != "" {
		name = "CSINode's status has the condition " + string(status)
	}
	s.Step(name, func(ctx context.Context) error {
		return harness.Eventually(ctx, harness.Patience, name, func() error {
			conditions, err := s.StorageHealth(ctx)
			if err != nil || status == "" && len(conditions) == 0 {
				return err
			}
			if len(conditions) != 1 || conditions[0].Status != status || conditions[0].Reason != "PhysLinkDown" {
				return fmt.Errorf("it has %+v", conditions)
			}
			message := conditions[0].Message
			if slices.ContainsFunc(troubles, func(t string) bool { return !strings.Contains(message, t) }) {
				return fmt.Errorf("its message is %q", message)
			}
			s.Note("ok: PhysLinkDown, %s", message)
			return nil
		})
	})
}
