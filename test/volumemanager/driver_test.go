package volumemanager_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"testing"

	csispec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/driver/dirdriver"
)

// The calls that the tests are about.
const (
	stage     = "NodeStageVolume"
	unstage   = "NodeUnstageVolume"
	publish   = "NodePublishVolume"
	unpublish = "NodeUnpublishVolume"
)

// driver is a fake CSI driver: the bundled one, which mounts directories, made to misbehave when a test wants it
// to. It writes down which calls reach it and what it holds.
type driver struct {
	name, address string
	node          *dirdriver.Driver

	mu     sync.Mutex
	server *grpc.Server
	calls  []string          // METHOD VOLUME
	holds  map[string]string // what is staged or published, by path
	next   map[string]behaviour
	// refusing answers Stage and Publish with FailedPrecondition, whatever happened before.
	refusing bool
}

// behaviour answers one call. do is what a driver has to do for it, and the answer that it then gives.
type behaviour func(do func() (any, error)) (any, error)

func newDriver(t *testing.T, name, address, stateDir string) *driver {
	t.Helper()
	node, err := dirdriver.New(dirdriver.Config{Name: name, NodeID: nodeName, StateDir: stateDir})
	if err != nil {
		t.Fatal(err)
	}
	if node.Kind() != "bind mounts" {
		t.Skip("this process may not mount")
	}
	return &driver{name: name, address: address, node: node, holds: map[string]string{}, next: map[string]behaviour{}}
}

func (d *driver) start(t *testing.T) {
	t.Helper()
	l, err := dirdriver.Listen(d.address)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(d.serve))
	csispec.RegisterIdentityServer(s, d.node)
	csispec.RegisterNodeServer(s, node{d.node})
	d.mu.Lock()
	d.server = s
	d.mu.Unlock()
	go func() { _ = s.Serve(l) }()
}

// crash ends the driver and breaks its connections. What it has mounted stays.
func (d *driver) crash() {
	d.mu.Lock()
	s := d.server
	d.mu.Unlock()
	s.Stop()
}

func (d *driver) serve(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	method := path.Base(info.FullMethod)
	volume, at := subject(req)
	if volume == "" {
		return handler(ctx, req)
	}
	d.mu.Lock()
	if d.refusing && (method == stage || method == publish) {
		d.mu.Unlock()
		return nil, status.Error(codes.FailedPrecondition, "refused, the driver was not called")
	}
	d.calls = append(d.calls, method+" "+volume)
	answer := d.next[method]
	delete(d.next, method)
	d.mu.Unlock()

	do := func() (any, error) {
		// A driver does not stop because its caller has gone.
		resp, err := handler(context.WithoutCancel(ctx), req)
		if err == nil {
			d.done(method, volume, at)
		}
		return resp, err
	}
	if answer != nil {
		return answer(do)
	}
	return do()
}

func (d *driver) done(method, volume, at string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch method {
	case stage, publish:
		d.holds[at] = volume
	case unstage, unpublish:
		delete(d.holds, at)
	}
}

// subject is "" for a call that makes and undoes nothing.
func subject(req any) (volume, at string) {
	switch r := req.(type) {
	case *csispec.NodeStageVolumeRequest:
		return r.GetVolumeId(), r.GetStagingTargetPath()
	case *csispec.NodeUnstageVolumeRequest:
		return r.GetVolumeId(), r.GetStagingTargetPath()
	case *csispec.NodePublishVolumeRequest:
		return r.GetVolumeId(), r.GetTargetPath()
	case *csispec.NodeUnpublishVolumeRequest:
		return r.GetVolumeId(), r.GetTargetPath()
	default:
		return "", ""
	}
}

// count is how often the call has reached the driver.
func (d *driver) count(method string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, c := range d.calls {
		if strings.HasPrefix(c, method+" ") {
			n++
		}
	}
	return n
}

// held are the paths at which the driver holds something, as it sees it.
func (d *driver) held() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var at []string
	for p := range d.holds {
		at = append(at, p)
	}
	return at
}

func (d *driver) refuse() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusing = true
}

// answer says how the next such call is answered.
func (d *driver) answer(method string, b behaviour) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.next[method] = b
}

// hold keeps the next such call with the driver until the test answers it.
func (d *driver) hold(method string) *heldCall {
	h := &heldCall{what: method, work: make(chan func() (any, error), 1), end: make(chan error, 1)}
	d.answer(method, func(do func() (any, error)) (any, error) {
		h.work <- do
		return nil, <-h.end
	})
	return h
}

// heldCall is a call that the driver is busy with.
type heldCall struct {
	what string
	work chan func() (any, error)
	end  chan error
	do   func() (any, error)
}

// await waits until the driver has the call.
func (h *heldCall) await(t *testing.T) {
	t.Helper()
	await(t, "the driver is called for "+h.what, func() bool {
		select {
		case h.do = <-h.work:
			return true
		default:
			return false
		}
	})
}

// timesOut answers the call as a driver whose time is up; it goes on with the work.
func (h *heldCall) timesOut() { h.end <- status.Error(codes.DeadlineExceeded, "too slow") }

// finishes is the end of the work, about which nobody hears.
func (h *heldCall) finishes(t *testing.T) {
	t.Helper()
	if _, err := h.do(); err != nil {
		t.Fatalf("the late %s failed: %v", h.what, err)
	}
}

// node adds to the bundled driver what many drivers do: it makes the directory at which it mounts, which kubelet may
// have removed meanwhile. And it has raw block volumes: staging only logs in, publishing mounts a device.
type node struct{ *dirdriver.Driver }

// device stands for every block device. Nobody reads it.
const device = "/dev/null"

func (n node) NodeStageVolume(ctx context.Context, r *csispec.NodeStageVolumeRequest) (*csispec.NodeStageVolumeResponse, error) {
	if r.GetVolumeCapability().GetBlock() == nil {
		if err := os.MkdirAll(r.GetStagingTargetPath(), 0o750); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		return n.Driver.NodeStageVolume(ctx, r)
	}
	return &csispec.NodeStageVolumeResponse{}, nil
}

func (n node) NodePublishVolume(ctx context.Context, r *csispec.NodePublishVolumeRequest) (*csispec.NodePublishVolumeResponse, error) {
	if r.GetVolumeCapability().GetBlock() == nil {
		if err := os.MkdirAll(path.Dir(r.GetTargetPath()), 0o750); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		return n.Driver.NodePublishVolume(ctx, r)
	}
	if err := os.WriteFile(r.GetTargetPath(), nil, 0o600); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := unix.Mount(device, r.GetTargetPath(), "", unix.MS_BIND, ""); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csispec.NodePublishVolumeResponse{}, nil
}

func (n node) NodeUnpublishVolume(ctx context.Context, r *csispec.NodeUnpublishVolumeRequest) (*csispec.NodeUnpublishVolumeResponse, error) {
	if !strings.Contains(r.GetTargetPath(), "/volumeDevices/") {
		return n.Driver.NodeUnpublishVolume(ctx, r)
	}
	if err := unix.Unmount(r.GetTargetPath(), 0); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := os.Remove(r.GetTargetPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csispec.NodeUnpublishVolumeResponse{}, nil
}
