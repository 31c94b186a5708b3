package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// volumesTurnUp has a volume turn up on a node that is drained, as far as one could see: kubelet cannot
// unmount it through a driver that it does not know.
func volumesTurnUp(s *harness.Scene) {
	s.Step("driver and gate are deployed, coming back may take an hour", func(ctx context.Context) error {
		return s.Deploy(ctx, harness.Deployment{Gate: []string{"--register-jitter=1h"}})
	})
	var files []string
	s.Step("a pod with a volume runs, which kubelet's directories hide", func(ctx context.Context) error {
		if err := runPod(ctx, s, "hidden"); err != nil {
			return err
		}
		var err error
		if files, err = volumeData(s, "hidden"); err != nil {
			return err
		}
		for _, f := range files {
			if err := os.Rename(f, f+".hidden"); err != nil {
				return err
			}
		}
		return nil
	})
	s.Step("the cable is pulled, the driver leaves CSINode", func(ctx context.Context) error {
		if err := s.Hardware.Pull(rdmanode.RoCE); err != nil {
			return err
		}
		return s.AwaitRegistered(ctx, false)
	})
	s.Step("the volume turns up, the driver is back without jitter", func(ctx context.Context) error {
		for _, f := range files {
			if err := os.Rename(f+".hidden", f); err != nil {
				return err
			}
		}
		there := time.Now()
		if err := s.AwaitRegistered(ctx, true); err != nil {
			return err
		}
		s.Note("ok, after %.1f s", time.Since(there).Seconds())
		status, err := s.GateStatus(ctx)
		if err == nil && (status.Gate.Open || status.Registration.Volumes == 0) {
			err = fmt.Errorf("the gate is not closed, or sees no volume: %+v", status)
		}
		return err
	})
	s.Step("deleted, the pod ends and its volume is unmounted", func(ctx context.Context) error {
		if err := s.DeletePod(ctx, "hidden"); err != nil {
			return err
		}
		return errors.Join(s.AwaitGone(ctx, "pod", "hidden"), awaitUnmounted(ctx, s, "hidden"))
	})
	s.Step("drained, the driver leaves CSINode again", func(ctx context.Context) error { return s.AwaitRegistered(ctx, false) })
}

// volumeData are kubelet's files that tell of a volume, staged and published.
func volumeData(s *harness.Scene, volume string) ([]string, error) {
	var files []string
	for _, pattern := range []string{
		"plugins/kubernetes.io/csi/" + harness.DriverName + "/*/vol_data.json",
		"pods/*/volumes/kubernetes.io~csi/" + volume + "/vol_data.json",
	} {
		found, err := filepath.Glob(s.Node.Path(filepath.Join(node.KubeletDir, pattern)))
		if err != nil {
			return nil, err
		}
		if len(found) != 1 {
			return nil, fmt.Errorf("%s: %d files, not one", pattern, len(found))
		}
		files = append(files, found...)
	}
	return files, nil
}

// deregistrations counts the gate's own.
const deregistrations = "csi_rdma_gate_deregistrations_total"

// faultsTooOften has a cable that somebody is working at. After four deregistrations within an hour the
// driver stays registered, and the gate alone guards it.
func faultsTooOften(s *harness.Scene) {
	const perHour = 4
	s.Step("driver and gate are deployed, both quick", func(ctx context.Context) error {
		return s.Deploy(ctx, harness.Deployment{Gate: []string{"--deregister-threshold=1", "--recover-threshold=1"}})
	})
	presence := s.WatchPresence()
	defer presence.Stop()
	s.Step("four faults deregister the driver and let it come back", func(ctx context.Context) error {
		began := time.Now()
		for range perHour {
			if err := s.Hardware.Pull(rdmanode.RoCE); err != nil {
				return err
			}
			if err := s.AwaitRegistered(ctx, false); err != nil {
				return err
			}
			if err := s.Hardware.Plug(rdmanode.RoCE); err != nil {
				return err
			}
			if err := s.AwaitRegistered(ctx, true); err != nil {
				return err
			}
		}
		// Each of them waited a random time before the driver left, and before it came back.
		waits, err := timesInLog(ctx, s, "gate", "Registration is going to change")
		if err == nil && waits < 2*perHour {
			err = fmt.Errorf("%d changes of the registration had a jitter, not %d", waits, 2*perHour)
		}
		s.Note("ok, in %.1f s, %.1f s of them missing from CSINode", time.Since(began).Seconds(), presence.MissingSince(began).Seconds())
		return err
	})
	s.Step("the fifth waits", func(ctx context.Context) error {
		if err := s.Hardware.Pull(rdmanode.RoCE); err != nil {
			return err
		}
		if err := awaitInLog(ctx, s, "gate", "Not deregistered: it would be too often", 1); err != nil {
			return err
		}
		return onlyGated(ctx, s, perHour)
	})
	s.Step("a pod is refused and told why", func(ctx context.Context) error {
		if err := s.CreatePodWithVolume(ctx, "during"); err != nil {
			return err
		}
		if err := refused(ctx, s, "during"); err != nil {
			return err
		}
		return onlyGated(ctx, s, perHour)
	})
	s.Step("the cable is plugged in, the pod runs", func(ctx context.Context) error {
		if err := s.Hardware.Plug(rdmanode.RoCE); err != nil {
			return err
		}
		return s.AwaitRunning(ctx, "during")
	})
	leave(s, "during")
}

// onlyGated sees that the driver is registered although trouble lasts, and the gate closed.
func onlyGated(ctx context.Context, s *harness.Scene, done int) error {
	status, err := s.GateStatus(ctx)
	if err != nil {
		return err
	}
	if r := status.Registration; status.Gate.Open || r.Wanted || !r.Registered {
		return fmt.Errorf("the gate is not closed, or its registration is not one that only waits for its end: %+v", status)
	}
	if n, err := metric(ctx, s, deregistrations); err != nil || n != done {
		return errors.Join(err, fmt.Errorf("there were %d deregistrations, not %d", n, done))
	}
	return stillRegistered(ctx, s)
}
