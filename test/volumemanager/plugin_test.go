package volumemanager_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// plugin is a CSI node plugin: RDMA hardware made of files, the fake driver, and before it the real gate, as a child
// process over real sockets. Everything about it bears its name: the driver, the volume, and the pods' names begin
// with it.
type plugin struct {
	*kubelet
	name     string
	driver   *driver
	hardware *rdmanode.Node
	gate     *child.Program
	gateLog  *child.Tail
}

// newPlugin starts driver and gate and waits until kubelet has registered them. The gate gets the arguments besides
// those that make it fast.
func newPlugin(t *testing.T, k *kubelet, gate, name string, args ...string) *plugin {
	t.Helper()
	p := &plugin{kubelet: k, name: name, gateLog: &child.Tail{Lines: 400}}
	dir := filepath.Join(filepath.Dir(k.dir), name)
	for _, d := range []string{dir, filepath.Dir(k.endpoint(name))} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if p.hardware, err = rdmanode.New(filepath.Join(dir, "node")); err != nil {
		t.Fatal(err)
	}
	p.driver = newDriver(t, name, filepath.Join(dir, "csi.sock"), filepath.Join(dir, "state"))
	p.gate = &child.Program{Name: "gate of " + name, Path: gate, Stdout: p.gateLog, Stderr: p.gateLog,
		Died: func(err error) { t.Errorf("%v", err) },
		Args: append([]string{
			"--csi-address=" + p.driver.address,
			"--kubelet-registration-path=" + k.endpoint(name),
			"--plugin-registration-path=" + filepath.Join(k.dir, "plugins_registry"),
			"--node-name=" + nodeName,
			"--host-root=" + p.hardware.Root(),
			"--rdma-device=" + rdmanode.RoCE,
			"--rdma-checks=port,gid,netdev",
			"--rdma-probe-interval=50ms",
			"--recover-threshold=1",
			"--deregister-threshold=3",
			"--deregister-jitter=0s",
			"--register-jitter=0s",
		}, args...),
	}
	t.Cleanup(func() {
		p.gate.Kill()
		p.driver.crash()
		if t.Failed() {
			t.Logf("the gate's log:\n%s", strings.Join(p.gateLog.Last(), "\n"))
		}
	})
	p.driver.start(t)
	p.startGate(t)
	p.awaitRegistered(t, true)
	return p
}

// newPlainPlugin has no gate: kubelet calls the driver itself, which can refuse like a gate without a memory. It is
// registered at kubelet's csi plugin directly.
func newPlainPlugin(t *testing.T, k *kubelet, name string) *plugin {
	t.Helper()
	p := &plugin{kubelet: k, name: name}
	if err := os.MkdirAll(filepath.Dir(k.endpoint(name)), 0o750); err != nil {
		t.Fatal(err)
	}
	p.driver = newDriver(t, name, k.endpoint(name), filepath.Join(filepath.Dir(k.dir), name))
	p.driver.start(t)
	t.Cleanup(p.driver.crash)
	if err := registerDriver(name, k.endpoint(name)); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *plugin) startGate(t *testing.T) {
	t.Helper()
	if err := p.gate.Start(); err != nil {
		t.Fatal(err)
	}
}

// restartGate kills it and waits until a new one serves.
func (p *plugin) restartGate(t *testing.T) {
	t.Helper()
	p.gate.Kill()
	const serving = "First look at RDMA ports"
	before := p.logged(serving)
	p.startGate(t)
	await(t, "the new gate has looked at the ports", func() bool { return p.logged(serving) > before })
}

// awaitRegistered waits until the node's CSINode has the driver or has it no more.
func (p *plugin) awaitRegistered(t *testing.T, want bool) {
	t.Helper()
	await(t, p.name+" is registered or not as it should", func() bool {
		n, err := p.client.StorageV1().CSINodes().Get(context.Background(), nodeName, metav1.GetOptions{})
		if err != nil {
			return false
		}
		for _, d := range n.Spec.Drivers {
			if d.Name == p.name {
				return want
			}
		}
		return !want
	})
}

// pull pulls the cable of the storage port and waits until the gate is closed.
func (p *plugin) pull(t *testing.T) {
	t.Helper()
	p.change(t, p.hardware.Pull, `"Gate closed"`)
}

// plug plugs it in again and waits until the gate is open.
func (p *plugin) plug(t *testing.T) {
	t.Helper()
	p.change(t, p.hardware.Plug, `"Gate opened"`)
}

func (p *plugin) change(t *testing.T, do func(string) error, line string) {
	t.Helper()
	before := p.logged(line)
	if err := do(rdmanode.RoCE); err != nil {
		t.Fatal(err)
	}
	await(t, "the gate logs "+line, func() bool { return p.logged(line) > before })
}

func (p *plugin) logged(text string) int {
	n := 0
	for _, l := range p.gateLog.Last() {
		n += strings.Count(l, text)
	}
	return n
}

// startPod makes the plugin's volume and starts a pod that uses it.
func (p *plugin) startPod(t *testing.T, mode v1.PersistentVolumeMode) *v1.Pod {
	t.Helper()
	createVolume(t, p.client, p.name, p.name, mode)
	pod := newPod(p.name, p.name, mode)
	p.start(pod)
	return pod
}

// deletePod deletes the pod and waits until kubelet has nothing left to do for its volume.
func (p *plugin) deletePod(t *testing.T, pod *v1.Pod) {
	t.Helper()
	p.delete(t, pod)
	p.forgets(t, p.name, p.name)
}

// refused waits for the gate's refusal in an event of the pod.
func (p *plugin) refused(t *testing.T, pod *v1.Pod) {
	t.Helper()
	p.events.await(t, pod, "RDMA not usable on node "+nodeName)
}

// said complains unless an event of the pod has all the texts.
func (p *plugin) said(t *testing.T, pod *v1.Pod, texts ...string) {
	t.Helper()
	if !p.events.say(pod, texts...) {
		t.Errorf("no event of pod %s says %q:\n%s", pod.Name, texts, p.events.of(pod))
	}
}

// leavesNothing is what all of this is about.
func (p *plugin) leavesNothing(t *testing.T) {
	t.Helper()
	if held := p.driver.held(); len(held) > 0 {
		t.Errorf("kubelet has forgotten the volume, the driver still holds it at %q", held)
	}
	for _, m := range p.mounts(t) {
		t.Errorf("kubelet has forgotten the volume, mounted is still %s", m)
	}
	for _, f := range p.files(t, p.name) {
		t.Errorf("left behind: %s", f)
	}
}

// leaks complains unless that many mounts are left, and removes them. Kubelet may be quicker with those that it knows.
func (p *plugin) leaks(t *testing.T, want int) {
	t.Helper()
	mounts := p.mounts(t)
	if len(mounts) != want || len(p.driver.held()) != want {
		t.Errorf("mounted is %q, the driver holds %q, expected was a leak of %d", mounts, p.driver.held(), want)
	}
	for _, m := range slices.Backward(mounts) {
		_ = unix.Unmount(m, unix.UMOUNT_NOFOLLOW)
	}
}

// mounts are those of the plugin's volume.
func (p *plugin) mounts(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, m := range mountsBelow(t, p.dir) {
		if strings.Contains(m, "/"+p.name+"/") {
			found = append(found, m)
		}
	}
	return found
}

// undone complains if kubelet never asked the driver to undo.
func (p *plugin) undone(t *testing.T, methods ...string) {
	t.Helper()
	for _, method := range methods {
		if p.driver.count(method) == 0 {
			t.Errorf("kubelet never called %s", method)
		}
	}
}

// called complains unless the driver was called for method that often.
func (p *plugin) called(t *testing.T, method string, want int) {
	t.Helper()
	if n := p.driver.count(method); n != want {
		t.Errorf("the driver was called %d times for %s, not %d times", n, method, want)
	}
}
