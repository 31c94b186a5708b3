package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"google.golang.org/grpc"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// podResources is the part of kubelet that tells which resources it advertises.
type podResources struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
}

func (podResources) GetAllocatableResources(context.Context, *podresourcesapi.AllocatableResourcesRequest) (*podresourcesapi.AllocatableResourcesResponse, error) {
	return &podresourcesapi.AllocatableResourcesResponse{Devices: []*podresourcesapi.ContainerDevices{{ResourceName: "rdma/hca", DeviceIds: []string{"0"}}}}, nil
}

func TestProbeCommandAsksKubelet(t *testing.T) {
	n := newNode(t)
	host := filepath.Join(n.dir, "host")
	a, err := txtar.ParseFile("../../pkg/probe/testdata/cases/39-stackhpc-988-two-edr-sysfs.txtar")
	if err != nil {
		t.Fatal(err)
	}
	lay(t, a, host)
	fields, _ := header(a)
	socket := filepath.Join(n.kubelet, "pod-resources", "kubelet.sock")
	if err := os.Mkdir(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	want := func(why, resources string, status int, message string) {
		t.Helper()
		stdout, stderr, got := execute(t, "probe", "-o=json", "--host-root="+host, "--rdma-checks="+fields["checks"],
			"--kubelet-registration-path="+n.socket, "--rdma-resource="+resources)
		if got != status || !strings.Contains(string(stdout), message) {
			t.Errorf("%s: status %d, %s%s; want %d and %s", why, got, stdout, stderr, status, message)
		}
	}
	want("no kubelet", "rdma/hca", 2, "connect: no such file or directory")

	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresourcesapi.RegisterPodResourcesListerServer(server, podResources{})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	want("advertised", "rdma/hca", 0, `"verdict":"healthy"`)
	want("kubelet has just started", "rdma/hca,rdma/other", 2, "rdma/other AttributeUnreadable (not advertised, but kubelet's socket is less than 1m0s old")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(socket, old, old); err != nil {
		t.Fatal(err)
	}
	want("not advertised", "rdma/hca,rdma/other", 1,
		"rdma/other ResourceNotAdvertised (the RDMA hardware is fine, but kubelet does not advertise it: look at the device plugin's DaemonSet, its taints and tolerations)")

	server.Stop()
	mute, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	stdout, _, status := execute(t, "probe", "-o=json", "--host-root="+host, "--rdma-checks="+fields["checks"],
		"--kubelet-dir="+n.kubelet, "--rdma-resource=rdma/hca", "--rdma-probe-timeout=100ms")
	if status != 2 || !strings.Contains(string(stdout), "no answer within 100ms") {
		t.Errorf("hung kubelet: status %d, %s", status, stdout)
	}
}

func TestWhereKubeletIsAsked(t *testing.T) {
	n := newNode(t)
	c, _, err := n.parse("--rdma-resource=rdma/hca,rdma/hca_b", "--rdma-resource=example.com/nic")
	if err != nil || len(c.probe.Resources) != 3 || c.probe.PodResourcesSocket != n.kubelet+"/pod-resources/kubelet.sock" {
		t.Errorf("%q at %s, %v", c.probe.Resources, c.probe.PodResourcesSocket, err)
	}
	for args, want := range map[string]string{
		"": "/var/lib/kubelet", "--kubelet-dir=/k": "/k", "--kubelet-registration-path=/x/plugins/y/csi.sock": "/x",
		"--kubelet-registration-path=unix:///x/plugins/y/csi.sock": "/x", "--kubelet-registration-path=/x/plugins/y/csi.sock --kubelet-dir=/k": "/k",
	} {
		fs, o := newFlags()
		if err := fs.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		if got := o.kubeletRoot(); got != want {
			t.Errorf("%s: %s, want %s", args, got, want)
		}
	}
}
