package image_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

// Names in the examples and in the story.
const (
	driverName = "nfs.example.com"
	nodeName   = "worker-7"
)

// simulated is a node to start a gate on: hardware out of plain files, the stand-in for kubelet, and the bundled driver.
type simulated struct {
	at       story.Places
	hardware *rdmanode.Node
	kubelet  *kubelet.Kubelet
}

func newSimulated(t *testing.T, driver string) *simulated {
	t.Helper()
	dir := sharedDir(t)
	n := &simulated{at: story.Places{
		Kubelet: filepath.Join(dir, "kubelet"), DriverSocket: filepath.Join(dir, "driver"), Host: filepath.Join(dir, "host"),
	}}
	for _, d := range []string{n.at.DriverSocket, filepath.Join(n.at.Kubelet, "plugins", driverName), filepath.Join(n.at.Kubelet, "plugins_registry")} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if n.hardware, err = rdmanode.New(n.at.Host); err != nil {
		t.Fatal(err)
	}
	n.kubelet = kubelet.New(kubelet.Config{Dir: n.at.Kubelet, NodeName: nodeName})
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- n.kubelet.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	process := &child.Program{Name: "driver", Path: driver, Args: []string{
		"--endpoint=" + filepath.Join(n.at.DriverSocket, "csi.sock"), "--state-dir=" + filepath.Join(dir, "state"), "--name=" + driverName,
	}}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(process.Kill)
	return n
}

// sharedDir is a directory with a path short enough for sockets, and a shared mount, as systemd makes everything on a node.
func sharedDir(t *testing.T) string {
	t.Helper()
	dir := storytest.TempDir(t)
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		entries, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Error(err)
		}
		if err := unmountBelow(dir); err != nil {
			t.Error(err)
		}
		for _, e := range entries {
			if err := os.RemoveAll(e); err != nil {
				t.Error(err)
			}
		}
	})
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	return dir
}

// unmountBelow unmounts dir and what a failed test left mounted below it.
func unmountBelow(dir string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(table)) {
		if point := strings.Fields(line)[4]; point == dir || strings.HasPrefix(point, dir+"/") {
			points = append([]string{point}, points...)
		}
	}
	for _, point := range points {
		if err := unix.Unmount(point, unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", point, err)
		}
	}
	return nil
}

// nodeNetwork is a network namespace with the interface of the simulated RoCE port, to stand for the host's. The path is
// good as long as the test runs.
func nodeNetwork(t *testing.T) string {
	t.Helper()
	fd, err := makeNetwork()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
}

// makeNetwork opens the namespace. The calling thread goes there and comes back: it must not end, since child processes
// that were started on it would end with it (PR_SET_PDEATHSIG).
func makeNetwork() (fd int, err error) {
	runtime.LockOSThread()
	const namespace = "/proc/thread-self/ns/net"
	home, err := unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(home)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return 0, err
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "ens1f0np0"
	linkErr := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "peer"})
	fd, err = unix.Open(namespace, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err := errors.Join(linkErr, err, unix.Setns(home, unix.CLONE_NEWNET)); err != nil {
		return 0, err
	}
	runtime.UnlockOSThread()
	return fd, nil
}

// makeVerbsUsable puts a device that can be opened where the verbs device of the RoCE port is. Nothing stands behind the
// simulated one, so that opening it fails whoever tries. The one that takes its place is on every Linux machine, may be
// opened by root without a capability, does nothing by itself, and is not among those that every container may use.
func makeVerbsUsable(host string) error {
	var device unix.Stat_t
	if err := unix.Stat("/dev/cpu_dma_latency", &device); err != nil {
		return fmt.Errorf("/dev/cpu_dma_latency: %w", err)
	}
	major, minor := unix.Major(uint64(device.Rdev)), unix.Minor(uint64(device.Rdev))
	attribute := filepath.Join(host, "sys/class/infiniband_verbs/uverbs0/dev")
	if err := os.WriteFile(attribute, fmt.Appendf(nil, "%d:%d\n", major, minor), 0o644); err != nil {
		return err
	}
	node := filepath.Join(host, "dev/infiniband/uverbs0")
	if err := os.Remove(node); err != nil {
		return err
	}
	return unix.Mknod(node, unix.S_IFCHR|0o600, int(device.Rdev))
}
