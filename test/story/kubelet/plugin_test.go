package kubelet_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

const driverName = "nfs.example.com"

// node is a kubelet's root with a kubelet that runs on it.
type node struct {
	*kubelet.Kubelet
	dir string
}

// newNode's path is short enough for sockets, which t.TempDir's is not always.
func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "kubelet-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	n := &node{dir: dir, Kubelet: kubelet.New(kubelet.Config{Dir: dir, NodeName: "n"})}
	if err := os.MkdirAll(n.RegistryDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// await waits for the driver to be registered or not.
func (n *node) await(t *testing.T, registered bool) kubelet.Driver {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	d, err := n.Drivers.Wait(ctx, driverName, registered)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// registrar answers as the driver at endpoint and keeps what kubelet told it.
type registrar struct {
	registerapi.UnimplementedRegistrationServer
	kind, endpoint string
	statuses       chan *registerapi.RegistrationStatus
}

func newRegistrar(endpoint string) *registrar {
	return &registrar{kind: kubelet.CSIPlugin, endpoint: endpoint, statuses: make(chan *registerapi.RegistrationStatus, 16)}
}

func (r *registrar) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: r.kind, Name: driverName, Endpoint: r.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	r.statuses <- s
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (r *registrar) serve(t *testing.T, path string) {
	t.Helper()
	serve(t, path, func(s *grpc.Server) { registerapi.RegisterRegistrationServer(s, r) })
}

func (r *registrar) status(t *testing.T) *registerapi.RegistrationStatus {
	t.Helper()
	select {
	case s := <-r.statuses:
		return s
	case <-time.After(10 * time.Second):
		t.Fatal("no NotifyRegistrationStatus")
		return nil
	}
}

// serve serves at path until the test ends. It leaves the socket, as a killed plugin does.
func serve(t *testing.T, path string, register func(*grpc.Server)) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	s := grpc.NewServer()
	register(s)
	go s.Serve(l) //nolint:errcheck // it ends with Stop
	t.Cleanup(s.Stop)
}

// nodeInfo is a driver that has no more than a node id and a topology.
type nodeInfo struct {
	csi.UnimplementedNodeServer
	topology map[string]string
}

func (n nodeInfo) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: "n", AccessibleTopology: &csi.Topology{Segments: n.topology}}, nil
}

// driver serves NodeGetInfo and returns its socket.
func (n *node) driver(t *testing.T, topology map[string]string) string {
	t.Helper()
	path := filepath.Join(n.dir, "csi.sock")
	os.Remove(path)
	serve(t, path, func(s *grpc.Server) { csi.RegisterNodeServer(s, nodeInfo{topology: topology}) })
	return path
}
