package proxy

import (
	"context"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// fakeDriver stands for the CSI driver under the gate: raw frames in, raw frames out.
type fakeDriver struct {
	address  string
	listener net.Listener
	server   *grpc.Server
	streams  uint32 // at once on a connection; 0 is any number

	mu    sync.Mutex
	calls map[string]int
	// replies by method; a method without one is answered with an empty message.
	replies map[string]proto.Message
	// behave, when set, answers instead.
	behave func(method string, stream grpc.ServerStream, request frame) error
}

func startDriver(t testing.TB, address string) *fakeDriver {
	t.Helper()
	d := &fakeDriver{address: address, calls: map[string]int{}, replies: map[string]proto.Message{
		csi.Identity_GetPluginInfo_FullMethodName:         &csi.GetPluginInfoResponse{Name: "rdma.example.com", VendorVersion: "1"},
		csi.Node_NodeGetInfo_FullMethodName:               &csi.NodeGetInfoResponse{NodeId: "node-1", MaxVolumesPerNode: 7},
		csi.Node_NodeGetCapabilities_FullMethodName:       &csi.NodeGetCapabilitiesResponse{},
		csi.Identity_GetPluginCapabilities_FullMethodName: &csi.GetPluginCapabilitiesResponse{},
	}}
	d.start(t)
	return d
}

func (d *fakeDriver) start(t testing.TB) {
	t.Helper()
	l, err := net.Listen("unix", d.address)
	if err != nil {
		t.Fatal(err)
	}
	d.server = grpc.NewServer(grpc.ForceServerCodecV2(codec{}), grpc.UnknownServiceHandler(d.handle), grpc.MaxRecvMsgSize(math.MaxInt32), grpc.MaxConcurrentStreams(d.streams))
	d.listener = l
	server := d.server
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
}

// stop ends it, and frees its address even if Serve has not taken the listener yet.
func (d *fakeDriver) stop() {
	d.server.Stop()
	_ = d.listener.Close()
}

func (d *fakeDriver) handle(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	var request frame
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	d.mu.Lock()
	d.calls[method]++
	behave, reply := d.behave, d.replies[method]
	d.mu.Unlock()
	if behave != nil {
		return behave(method, stream, request)
	}
	var f frame
	if reply != nil {
		f, _ = proto.Marshal(reply)
	}
	return stream.SendMsg(&f)
}

func (d *fakeDriver) count(method string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[method]
}

func (d *fakeDriver) set(behave func(method string, stream grpc.ServerStream, request frame) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.behave = behave
}

// health is a snapshot that a test can exchange.
type health struct {
	mu sync.Mutex
	h  *probe.Health
}

func (h *health) get() *probe.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.h
}

func (h *health) set(to *probe.Health) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.h = to
}

var closedSince = time.Date(2026, 11, 30, 17, 58, 3, 0, time.UTC)

func open() *probe.Health {
	return &probe.Health{Result: probe.Result{Verdict: probe.Healthy, Ports: []probe.Port{
		{Device: "mlx5_0", Number: 1, Verdict: probe.Healthy, LinkLayer: probe.InfiniBand, SubnetPrefix: "fec0000000000001"},
	}}, Open: true, Decided: true}
}

func closed() *probe.Health {
	const detail = "state 1: DOWN, phys_state 2: Polling"
	return &probe.Health{Result: probe.Result{Verdict: probe.Unhealthy, Reason: probe.PhysLinkDown, Ports: []probe.Port{
		{Device: "mlx5_0", Number: 1, Verdict: probe.Unhealthy, Reason: probe.PhysLinkDown, Detail: detail, LinkLayer: probe.InfiniBand, SubnetPrefix: "fec0000000000001"},
	}}, Since: closedSince, Decided: true, Cause: []probe.Trouble{
		{Subject: "mlx5_0/1", Reason: probe.PhysLinkDown, Detail: detail},
	}}
}

// rig is a gate between a client and a fake driver, over real sockets.
type rig struct {
	*Server
	t      testing.TB
	driver *fakeDriver
	health *health
	conn   *grpc.ClientConn
	// kubelet is kubelet's root directory.
	kubelet string
}

func newRig(t testing.TB, change func(*Config)) *rig {
	t.Helper()
	// A short directory: a Unix socket's path is limited to 107 bytes.
	dir, err := os.MkdirTemp("", "gate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, health: &health{h: open()}, kubelet: filepath.Join(dir, "kubelet")}
	r.driver = startDriver(t, filepath.Join(dir, "driver.sock"))
	c := Config{
		DriverAddress: r.driver.address,
		Timeout:       time.Second,
		KubeletDir:    r.kubelet,
		Gate:          GateConfig{Health: r.health.get, NodeName: "worker-7"},
		Topology:      TopologyConfig{Mode: TopologyAuto, Health: r.health.get},
	}
	if change != nil {
		change(&c)
	}
	if r.Server, err = New(c); err != nil {
		t.Fatal(err)
	}
	r.Inherit()
	l, err := net.Listen("unix", filepath.Join(dir, "gate.sock"))
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = r.Serve(l) }()
	r.conn, err = grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.conn.Close()
		r.grpc.Stop()
		r.Server.driver.close()
	})
	return r
}

func (r *rig) node() csi.NodeClient         { return csi.NewNodeClient(r.conn) }
func (r *rig) identity() csi.IdentityClient { return csi.NewIdentityClient(r.conn) }

func (r *rig) stage(id, path string) error {
	_, err := r.node().NodeStageVolume(r.t.Context(), &csi.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: path, VolumeCapability: &csi.VolumeCapability{},
	})
	return err
}

func (r *rig) publish(id, path string) error {
	_, err := r.node().NodePublishVolume(r.t.Context(), &csi.NodePublishVolumeRequest{
		VolumeId: id, TargetPath: path, VolumeCapability: &csi.VolumeCapability{},
	})
	return err
}

func (r *rig) unstage(id, path string) error {
	_, err := r.node().NodeUnstageVolume(r.t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path})
	return err
}

func (r *rig) unpublish(id, path string) error {
	_, err := r.node().NodeUnpublishVolume(r.t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path})
	return err
}

func (r *rig) ctx(timeout time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), timeout)
	r.t.Cleanup(cancel)
	return ctx
}
