package monitoring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

const (
	driverName = "nfs.example.com"
	nodeName   = "worker-7"
	// patience is far more than anything here takes.
	patience = 30 * time.Second
)

// node is a simulated RDMA node with a stand-in for kubelet, the fake CSI driver and the real gate.
type node struct {
	t       *testing.T
	dir     string
	hw      *rdmanode.Node
	kubelet *kubelet.Kubelet
	gate    *child.Program
	log     *buffer
	// address is that of the gate's HTTP endpoint.
	address string
}

// startNode starts all of it and returns once the gate is open and kubelet knows the driver. Whatever it has started ends
// with the test. flags are appended to the gate's.
func (b binaries) startNode(t *testing.T, flags ...string) *node {
	t.Helper()
	n := &node{t: t, dir: storytest.TempDir(t), log: &buffer{}, address: freeAddress(t)}
	t.Cleanup(func() { n.clear() })
	for _, d := range []string{"driver", "kubelet/plugins/" + driverName, "kubelet/plugins_registry", "kubelet/pods"} {
		if err := os.MkdirAll(n.path(d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if n.hw, err = rdmanode.New(n.path("node")); err != nil {
		t.Fatal(err)
	}
	n.startKubelet()
	n.start("driver", b.driver, io.Discard,
		"--endpoint="+n.path("driver/csi.sock"), "--state-dir="+n.path("driver/state"), "--name="+driverName, "--node-id="+nodeName)
	n.await("the driver serves", func() bool { _, err := os.Lstat(n.path("driver/csi.sock")); return err == nil })
	n.gate = n.start("gate", b.gate, n.log, append(n.gateFlags(), flags...)...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the gate's log:\n%s", n.log)
		}
	})
	n.awaitOpen(true)
	n.awaitRegistered(true)
	return n
}

// gateFlags are a DaemonSet's, and those that spare the test the waiting.
func (n *node) gateFlags() []string {
	flags := []string{
		"--csi-address=" + n.path("driver/csi.sock"),
		"--kubelet-registration-path=" + n.path("kubelet/plugins/"+driverName+"/csi.sock"),
		"--plugin-registration-path=" + n.path("kubelet/plugins_registry"),
		"--host-root=" + n.hw.Root(),
		"--node-name=" + nodeName,
		"--rdma-device=" + rdmanode.RoCE,
		"--override-file=" + n.path("override"),
		"--http-endpoint=" + n.address,
		"--rdma-probe-interval=100ms",
		"--deregister-threshold=5",
		"--deregister-jitter=0s",
		"--register-jitter=0s",
	}
	if !n.hw.Verbs() {
		flags = append(flags, "--rdma-checks=port,gid,netdev")
	}
	return flags
}

func (n *node) startKubelet() {
	n.kubelet = kubelet.New(kubelet.Config{Dir: n.path("kubelet"), NodeName: nodeName})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := n.kubelet.Run(ctx); err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

func (n *node) start(name, path string, stderr io.Writer, args ...string) *child.Program {
	n.t.Helper()
	p := &child.Program{Name: name, Path: path, Args: args, Stderr: stderr, Died: func(err error) { n.t.Error(err) }}
	if err := p.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := p.Stop(patience); err != nil {
			n.t.Error(err)
		}
	})
	return p
}

func (n *node) path(rel string) string { return filepath.Join(n.dir, rel) }

// clear removes what is below dir, mounts first.
func (n *node) clear() {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		n.t.Error(err)
	}
	for _, line := range slices.Backward(strings.Split(strings.TrimSpace(string(mounts)), "\n")) {
		if path := strings.Fields(line)[4]; strings.HasPrefix(path, n.dir+"/") {
			n.t.Errorf("still mounted: %s", path)
			_ = syscall.Unmount(path, syscall.MNT_DETACH)
		}
	}
	for _, d := range []string{"driver", "kubelet", "node", "override"} {
		if err := os.RemoveAll(n.path(d)); err != nil {
			n.t.Error(err)
		}
	}
}

// freeAddress is one of loopback that nobody uses at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// get is what the gate's HTTP endpoint serves at path.
func (n *node) get(path string) (string, error) {
	r, err := http.Get("http://" + n.address + path)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if r.StatusCode != http.StatusOK {
		err = errors.Join(err, errors.New(r.Status))
	}
	return string(body), err
}

func (n *node) mustGet(path string) string {
	n.t.Helper()
	body, err := n.get(path)
	if err != nil {
		n.t.Fatalf("%s: %v", path, err)
	}
	return body
}

func (n *node) await(what string, ok func() bool) {
	n.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// awaitMetric waits until /metrics has the line.
func (n *node) awaitMetric(line string) {
	n.t.Helper()
	n.await(line, func() bool {
		metrics, err := n.get("/metrics")
		return err == nil && strings.Contains(metrics, "\n"+line+"\n")
	})
}

// awaitLog waits until the gate has written so many lines with the message.
func (n *node) awaitLog(message string, lines int) {
	n.t.Helper()
	n.await(message, func() bool { return strings.Count(n.log.String(), `"`+message+`"`) >= lines })
}

func (n *node) awaitOpen(want bool) {
	n.t.Helper()
	n.awaitMetric(fmt.Sprintf("csi_rdma_gate_open %d", map[bool]int{true: 1}[want]))
}

// awaitRegistered waits until kubelet knows the driver, or does not, and the gate knows of it.
func (n *node) awaitRegistered(want bool) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	if _, err := n.kubelet.Drivers.Wait(ctx, driverName, want); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) pull() {
	n.t.Helper()
	if err := n.hw.Pull(rdmanode.RoCE); err != nil {
		n.t.Fatal(err)
	}
	n.awaitOpen(false)
}

func (n *node) plug() {
	n.t.Helper()
	if err := n.hw.Plug(rdmanode.RoCE); err != nil {
		n.t.Fatal(err)
	}
	n.awaitOpen(true)
}

// override writes the override file; "" removes it.
func (n *node) override(line string) {
	n.t.Helper()
	err := os.Remove(n.path("override"))
	if line != "" {
		next := n.path("driver/override") // the gate must not see half of it
		err = errors.Join(os.WriteFile(next, []byte(line+"\n"), 0o644), os.Rename(next, n.path("override")))
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

func volume(i int) kubelet.Volume {
	return kubelet.Volume{PV: fmt.Sprintf("pv-%d", i), Driver: driverName, Handle: fmt.Sprintf("vol-%d", i)}
}

func (n *node) mount(i int) error {
	return n.kubelet.Mount(n.t.Context(), fmt.Sprintf("pod-%d", i), volume(i))
}

func (n *node) mustMount(i int) {
	n.t.Helper()
	if err := n.mount(i); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) mustUnmount(i int) {
	n.t.Helper()
	if err := n.kubelet.Unmount(n.t.Context(), fmt.Sprintf("pod-%d", i), volume(i)); err != nil {
		n.t.Fatal(err)
	}
}

// refuse has one volume refused.
func (n *node) refuse(i int) {
	n.t.Helper()
	if err := n.mount(i); err == nil || !strings.Contains(err.Error(), "FailedPrecondition") {
		n.t.Fatalf("volume %d was not refused: %v", i, err)
	}
}

// buffer is a bytes.Buffer that is safe for concurrent use.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
