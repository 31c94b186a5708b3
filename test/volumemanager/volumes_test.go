// Package volumemanager_test lets kubelet's own code decide what a CSI driver behind the gate is called for, and looks
// at what the driver still holds once kubelet has forgotten the volume.
package volumemanager_test

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

const (
	filesystem = v1.PersistentVolumeFilesystem
	block      = v1.PersistentVolumeBlock
)

// No mount is leaked and no pod hangs, whatever the driver and the hardware do.
func TestVolumes(t *testing.T) {
	gate, _ := storytest.Build(t)
	// These share a kubelet. Each has a driver, a gate and hardware of its own.
	t.Run("one-kubelet", func(t *testing.T) {
		scenarios := []struct {
			name      string
			run       func(t *testing.T, k *kubelet, gate, name string)
			republish bool
		}{
			{name: "stage-timed-out", run: stageTimedOut},
			{name: "stage-timed-out-plainly-refused", run: stageTimedOutPlainlyRefused},
			{name: "publish-timed-out", run: publishTimedOut},
			{name: "publish-timed-out-plainly-refused", run: publishTimedOutPlainlyRefused},
			{name: "refused-from-the-start", run: refusedFromTheStart},
			{name: "gate-killed-after-time-out", run: gateKilledAfterTimeOut},
			{name: "republished-while-closed", run: republishedWhileClosed, republish: true},
			{name: "driver-down", run: driverDown},
			{name: "driver-crashed-while-staging", run: driverCrashedWhileStaging},
			{name: "deregistered-when-drained", run: deregisteredWhenDrained},
			{name: "raw-block", run: rawBlock},
		}
		var drivers []*storagev1.CSIDriver
		for _, s := range scenarios {
			drivers = append(drivers, csiDriver(s.name, s.republish))
		}
		k := startKubelet(t, newCluster(drivers...))
		for _, s := range scenarios {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				s.run(t, k, gate, s.name)
			})
		}
	})
	t.Run("kubelet-restarted", func(t *testing.T) { kubeletRestarted(t, gate, "kubelet-restarted") })
}

// A stage runs into its time limit, the gate closes, and the driver ends up with a mount. Kubelet must unstage it.
func stageTimedOut(t *testing.T, k *kubelet, gate, name string) {
	p := newPlugin(t, k, gate, name)
	call := p.driver.hold(stage)
	pod := p.startPod(t, filesystem)
	call.await(t)
	p.pull(t)
	call.timesOut()
	p.refused(t, pod)
	p.called(t, stage, 1)
	call.finishes(t)
	p.deletePod(t, pod)

	p.said(t, pod, "FailedMount", "MountVolume.MountDevice failed", "code = Unavailable", "mlx5_0/1 PhysLinkDown",
		"ended without a final answer")
	p.undone(t, unstage)
	p.leavesNothing(t)
}

// The same without the gate, refused with FailedPrecondition: the mount is leaked. So the test above can fail.
func stageTimedOutPlainlyRefused(t *testing.T, k *kubelet, _, name string) {
	p := newPlainPlugin(t, k, name)
	call := p.driver.hold(stage)
	pod := p.startPod(t, filesystem)
	call.await(t)
	p.driver.refuse()
	call.timesOut()
	p.events.await(t, pod, "MountVolume.MountDevice failed", "code = FailedPrecondition")
	call.finishes(t)
	p.deletePod(t, pod)

	p.called(t, unstage, 0)
	p.leaks(t, 1)
}

// A publish runs into its time limit, the gate closes, and the driver ends up with a mount.
func publishTimedOut(t *testing.T, k *kubelet, gate, name string) {
	p := newPlugin(t, k, gate, name)
	call := p.driver.hold(publish)
	pod := p.startPod(t, filesystem)
	call.await(t)
	p.pull(t)
	call.timesOut()
	p.refused(t, pod)
	p.called(t, publish, 1)
	call.finishes(t)
	p.deletePod(t, pod)

	p.said(t, pod, "FailedMount", "MountVolume.SetUp failed", "code = Unavailable", "mlx5_0/1 PhysLinkDown",
		"ended without a final answer")
	p.undone(t, unpublish, unstage)
	p.leavesNothing(t)
}

// The same without the gate: the pod goes although its volume is mounted, and because of that mount the volume cannot
// be unstaged either.
func publishTimedOutPlainlyRefused(t *testing.T, k *kubelet, _, name string) {
	p := newPlainPlugin(t, k, name)
	call := p.driver.hold(publish)
	pod := p.startPod(t, filesystem)
	call.await(t)
	p.driver.refuse()
	call.timesOut()
	p.events.await(t, pod, "MountVolume.SetUp failed", "code = FailedPrecondition")
	call.finishes(t)
	p.delete(t, pod)

	p.called(t, unpublish, 0)
	p.leaks(t, 2)
}

// Nothing was begun: the refusal is final, and there is nothing to undo.
func refusedFromTheStart(t *testing.T, k *kubelet, gate, name string) {
	p := newPlugin(t, k, gate, name, "--deregister-policy=never")
	p.pull(t)
	pod := p.startPod(t, filesystem)
	p.refused(t, pod)
	p.deletePod(t, pod)

	p.said(t, pod, "FailedMount", "MountVolume.MountDevice failed", "code = FailedPrecondition", "mlx5_0/1 PhysLinkDown",
		"was not staged, the CSI driver was not called")
	for _, method := range []string{stage, unstage, publish, unpublish} {
		p.called(t, method, 0)
	}
	p.leavesNothing(t)
}

// The gate is killed between a stage that timed out and its repetition. The new gate finds the port down and
// kubelet's file about the volume.
func gateKilledAfterTimeOut(t *testing.T, k *kubelet, gate, name string) {
	p := newPlugin(t, k, gate, name)
	call := p.driver.hold(stage)
	pod := p.startPod(t, filesystem)
	call.await(t)
	p.pull(t)
	call.timesOut()
	p.refused(t, pod)
	before := p.logged(`"Refused"`)
	p.restartGate(t)
	await(t, "the new gate refuses", func() bool { return p.logged(`"Refused"`) > before })
	p.called(t, stage, 1)
	call.finishes(t)
	p.deletePod(t, pod)

	p.said(t, pod, "FailedMount", "MountVolume.MountDevice failed", "code = Unavailable", "mlx5_0/1 PhysLinkDown",
		"kubelet had begun with it before this gate started")
	p.undone(t, unstage)
	p.leavesNothing(t)
}

// With requiresRepublish kubelet repeats NodePublishVolume for a live target at each sync of the pod.
func republishedWhileClosed(t *testing.T, k *kubelet, gate, name string) {
	p := newPlugin(t, k, gate, name)
	pod := p.startPod(t, filesystem)
	p.sync(t, pod)
	p.pull(t)
	mounts := p.mounts(t)
	for range 3 {
		before := p.driver.count(publish)
		p.sync(t, pod)
		await(t, "the volume is published again", func() bool { return p.driver.count(publish) > before })
	}
	p.called(t, stage, 1)
	if now := p.mounts(t); len(now) != 2 || len(mounts) != 2 {
		t.Errorf("mounted before: %q, after: %q", mounts, now)
	}
	if e := p.events.of(pod); e != "" {
		t.Errorf("events of a pod without trouble:\n%s", e)
	}
	p.deletePod(t, pod)

	p.called(t, unpublish, 1)
	p.called(t, unstage, 1)
	p.leavesNothing(t)
}

// The driver is away when the pod is started and when it is deleted. The gate is open, and answers for it what kubelet
// asks before each operation.
func driverDown(t *testing.T, k *kubelet, gate, name string) {
	p := newPlugin(t, k, gate, name)
	p.driver.crash()
	pod := p.startPod(t, filesystem)
	p.events.await(t, pod, "MountVolume.MountDevice failed", "code = Unavailable", "CSI driver not reachable")
	p.delete(t, pod)
	p.driver.start(t)
	p.forgets(t, p.name, p.name)

	p.called(t, stage, 0)
	p.called(t, unstage, 1)
	p.leavesNothing(t)
}

// The driver mounts, crashes before it can say so, and stays away until the pod is deleted. The gate is open.
func driverCrashedWhileStaging(t *testing.T, k *kubelet, gate, name string) {
	p := newPlugin(t, k, gate, name)
	call := p.driver.hold(stage)
	pod := p.startPod(t, filesystem)
	call.await(t)
	call.finishes(t)
	p.driver.crash()
	call.timesOut() // to nobody
	p.events.await(t, pod, "MountVolume.MountDevice failed", "code = Unavailable", "CSI driver not reachable")
	p.delete(t, pod)
	p.driver.start(t)
	p.forgets(t, p.name, p.name)

	p.called(t, unstage, 1)
	p.leavesNothing(t)
}

// A pod is deleted while the port is down: its volume is unmounted first, then the driver is deregistered. A new pod
// waits and mounts once the port is up.
func deregisteredWhenDrained(t *testing.T, k *kubelet, gate, name string) {
	p := newPlugin(t, k, gate, name)
	pod := p.startPod(t, filesystem)
	p.sync(t, pod)
	p.pull(t)
	await(t, "the trouble counts for the registration", func() bool { return p.logged("Trouble counts for the registration") > 0 })
	p.deletePod(t, pod) // which would hang if the driver were not registered
	p.called(t, unpublish, 1)
	p.called(t, unstage, 1)
	p.leavesNothing(t)
	p.awaitRegistered(t, false)

	second := newPod(name+"-second", name, filesystem)
	p.start(second)
	p.events.await(t, second, "FailedMount", "driver name "+name+" not found in the list of registered CSI drivers")
	p.called(t, stage, 1)
	p.plug(t)
	p.sync(t, second)
	p.called(t, stage, 2)
	p.called(t, publish, 2)
	p.deletePod(t, second)
	p.leavesNothing(t)
}

// A raw block volume is in use when the gate is killed; the new one starts closed.
func rawBlock(t *testing.T, k *kubelet, gate, name string) {
	p := newPlugin(t, k, gate, name)
	pod := p.startPod(t, block)
	p.sync(t, pod)
	p.called(t, publish, 1)
	p.gate.Kill()
	if err := p.hardware.Pull(rdmanode.RoCE); err != nil {
		t.Fatal(err)
	}
	p.restartGate(t)
	p.deletePod(t, pod)

	p.called(t, unpublish, 1)
	p.called(t, unstage, 1)
	p.leavesNothing(t)
}

// Kubelet is restarted while a pod runs and the gate is closed, and then once more with a new gate. It stages and
// publishes again what is mounted; a refusal would undo it.
func kubeletRestarted(t *testing.T, gate, name string) {
	k := startKubelet(t, newCluster(csiDriver(name, false)))
	p := newPlugin(t, k, gate, name)
	pod := p.startPod(t, filesystem)
	p.sync(t, pod)
	p.pull(t)

	for i, gateToo := range []bool{false, true} {
		if gateToo {
			p.restartGate(t)
		}
		k.restart(name)
		p.sync(t, pod)
		p.called(t, stage, 2+i)
		p.called(t, publish, 2+i)
		if m := p.mounts(t); len(m) != 2 {
			t.Fatalf("mounted after the restart: %q", m)
		}
	}
	if e := p.events.of(pod); strings.Contains(e, "RDMA not usable") {
		t.Errorf("a live volume was refused:\n%s", e)
	}
	p.deletePod(t, pod)

	p.called(t, unpublish, 1)
	p.called(t, unstage, 1)
	p.leavesNothing(t)
}
