package kubelet_test

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/driver/dirdriver"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var volume = kubelet.Volume{PV: "pv-1", Driver: driverName, Handle: "vol-1"}

// register puts a driver at the socket into the node's list, past the plugin watcher.
func (n *node) register(t *testing.T, sock string) {
	t.Helper()
	if err := n.Drivers.RegisterPlugin(driverName, sock, []string{"1.0.0"}, nil); err != nil {
		t.Fatal(err)
	}
}

func TestMountAndUnmount(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d, err := dirdriver.New(dirdriver.Config{Name: driverName, NodeID: "n", StateDir: filepath.Join(n.dir, "state")})
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(n.dir, "csi.sock")
	l, err := dirdriver.Listen(sock)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() {
		if err := d.Serve(ctx, l); err != nil {
			t.Error(err)
		}
	})
	defer served.Wait()
	defer cancel()
	n.register(t, sock)

	for range 2 {
		if err := n.Mount(t.Context(), "uid-1", volume); err != nil {
			t.Fatal(err)
		}
	}
	staged, published := n.StagingPath(volume), n.TargetPath("uid-1", volume)
	want := map[string]string{"driverName": driverName, "volumeHandle": "vol-1"}
	if got := volData(t, staged); len(got) != 2 || got["driverName"] != want["driverName"] || got["volumeHandle"] != want["volumeHandle"] {
		t.Errorf("vol_data.json of the staged volume is %v, want %v", got, want)
	}
	if got := volData(t, published); got["specVolID"] != "pv-1" || got["volumeHandle"] != "vol-1" || got["volumeLifecycleMode"] != "Persistent" {
		t.Errorf("vol_data.json of the published volume is %v", got)
	}
	if err := n.Mount(t.Context(), "uid-2", volume); err != nil {
		t.Fatal(err)
	}
	if err := n.Unmount(t.Context(), "uid-1", volume); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(staged); err != nil {
		t.Errorf("unstaged while a pod uses the volume: %v", err)
	}
	if err := n.Unmount(t.Context(), "uid-2", volume); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Dir(staged), filepath.Dir(published)} {
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", path, err)
		}
	}
}

func TestRestartedKubeletUnmounts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := &scripted{}
	n.register(t, s.serve(t, n))
	if err := n.Mount(t.Context(), "uid-1", volume); err != nil {
		t.Fatal(err)
	}
	restarted := &node{dir: n.dir, Kubelet: kubelet.New(kubelet.Config{Dir: n.dir})}
	restarted.register(t, filepath.Join(n.dir, "csi.sock"))
	if err := restarted.Unmount(t.Context(), "uid-1", volume); err != nil {
		t.Fatal(err)
	}
	s.wantCalls(t, "stage", "publish", "unpublish", "unstage")
}

func TestDriverThatIsNotRegistered(t *testing.T) {
	t.Parallel()
	err := newNode(t).Mount(t.Context(), "uid-1", volume)
	const want = `MountVolume.MountDevice failed for volume "pv-1" : kubernetes.io/csi: attacher.MountDevice failed to create newCsiDriverClient: ` +
		`driver name nfs.example.com not found in the list of registered CSI drivers`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// What kubelet calls when the pod is deleted depends on whether the failure was final.
func TestUnmountAfterFailure(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stage, publish codes.Code
		event          string
		calls          []string
	}{
		"stage, final": {
			stage: codes.FailedPrecondition,
			event: `MountVolume.MountDevice failed for volume "pv-1" : rpc error: code = FailedPrecondition desc = no`,
			calls: []string{"stage"},
		},
		"stage, not final": {
			stage: codes.Unavailable,
			event: `MountVolume.MountDevice failed for volume "pv-1" : rpc error: code = Unavailable desc = no`,
			calls: []string{"stage", "unstage"},
		},
		"publish, final": {
			publish: codes.FailedPrecondition,
			event:   `MountVolume.SetUp failed for volume "pv-1" : rpc error: code = FailedPrecondition desc = no`,
			calls:   []string{"stage", "publish", "unstage"},
		},
		"publish, not final": {
			publish: codes.Aborted,
			event:   `MountVolume.SetUp failed for volume "pv-1" : rpc error: code = Aborted desc = no`,
			calls:   []string{"stage", "publish", "unpublish", "unstage"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			s := &scripted{stage: c.stage, publish: c.publish}
			n.register(t, s.serve(t, n))
			if err := n.Mount(t.Context(), "uid-1", volume); err == nil || err.Error() != c.event {
				t.Errorf("event %v\nwant  %s", err, c.event)
			}
			if err := n.Unmount(t.Context(), "uid-1", volume); err != nil {
				t.Error(err)
			}
			s.wantCalls(t, c.calls...)
		})
	}
}

// scripted is a driver that answers with the codes it was given and mounts nothing.
type scripted struct {
	nodeInfo
	stage, publish codes.Code

	mu    sync.Mutex
	calls []string
}

func (s *scripted) serve(t *testing.T, n *node) string {
	sock := filepath.Join(n.dir, "csi.sock")
	serve(t, sock, func(g *grpc.Server) { csi.RegisterNodeServer(g, s) })
	return sock
}

func (s *scripted) call(name string, code codes.Code) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, name)
	return status.Error(code, "no")
}

func (s *scripted) wantCalls(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.calls) != len(want) {
		t.Fatalf("calls %q, want %q", s.calls, want)
	}
	for i := range want {
		if s.calls[i] != want[i] {
			t.Fatalf("calls %q, want %q", s.calls, want)
		}
	}
}

func (s *scripted) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{
		Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}},
	}}}, nil
}

func (s *scripted) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if _, err := os.Stat(filepath.Join(filepath.Dir(req.GetStagingTargetPath()), "vol_data.json")); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodeStageVolumeResponse{}, s.call("stage", s.stage)
}

func (s *scripted) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if _, err := os.Stat(filepath.Join(filepath.Dir(req.GetTargetPath()), "vol_data.json")); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csi.NodePublishVolumeResponse{}, s.call("publish", s.publish)
}

func (s *scripted) NodeUnpublishVolume(context.Context, *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, s.call("unpublish", codes.OK)
}

func (s *scripted) NodeUnstageVolume(context.Context, *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, s.call("unstage", codes.OK)
}

func volData(t *testing.T, path string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(filepath.Dir(path), "vol_data.json"))
	if err != nil {
		t.Fatal(err)
	}
	data := map[string]string{}
	if err := json.Unmarshal(b, &data); err != nil {
		t.Fatal(err)
	}
	return data
}
