package proxy

import (
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
)

func (r *rig) wantVolumes(t *testing.T, what string, want int) {
	t.Helper()
	if got, err := r.Volumes(); got != want || err != nil {
		t.Errorf("%s: %d volumes, %v; want %d", what, got, err, want)
	}
}

func TestVolumesOnThisNode(t *testing.T) {
	r := newRig(t, nil)
	if _, err := r.DriverName(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wantVolumes(t, "no directory", 0)
	writeVolData(t, r.stagedDir("h1"), "rdma.example.com", "v")
	writeVolData(t, r.publishedDir("p1"), "rdma.example.com", "v")
	r.wantVolumes(t, "staged and published", 2)
	writeVolData(t, filepath.Join(r.kubelet, "plugins/kubernetes.io/csi/other.example.com/h"), "other.example.com", "w")
	r.wantVolumes(t, "another driver's", 2)
	writeVolData(t, r.publishedDir("p2"), "", "")
	r.wantVolumes(t, "a half-written file", 3)
	if err := os.MkdirAll(r.publishedDir("p3"), 0o755); err != nil {
		t.Fatal(err)
	}
	r.wantVolumes(t, "a directory without a file", 3)
	if err := os.WriteFile(filepath.Join(r.kubelet, "pods", "stray"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.wantVolumes(t, "a stray file among the pods", 3)
}

func TestARawBlockVolumeCountsOnceItsPathExists(t *testing.T) {
	for _, place := range []string{"staging/pv1", "publish/pv1/pod"} {
		r := newRig(t, nil)
		if _, err := r.DriverName(t.Context()); err != nil {
			t.Fatal(err)
		}
		block := filepath.Join(r.kubelet, "plugins/kubernetes.io/csi/volumeDevices")
		writeVolData(t, filepath.Join(block, "pv1/data"), "rdma.example.com", "v")
		r.wantVolumes(t, "a pod that only waits", 0)
		if err := os.MkdirAll(filepath.Join(block, place), 0o755); err != nil {
			t.Fatal(err)
		}
		r.wantVolumes(t, place, 1)
	}
}

func TestCallsInFlightCount(t *testing.T) {
	r := newRig(t, nil)
	called, finish := make(chan struct{}), make(chan struct{})
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		called <- struct{}{}
		<-finish
		return stream.SendMsg(&frame{})
	})
	done := make(chan error)
	go func() { done <- r.stage("v", "/s") }()
	go func() { done <- r.unstage("w", "/s") }()
	<-called
	<-called
	r.wantVolumes(t, "two calls", 2)
	close(finish)
	<-done
	<-done
	r.wantVolumes(t, "both ended", 0)
	select {
	case <-r.Undone():
	default:
		t.Error("nobody is told that a volume may be gone")
	}
}

func TestAnUnreadableDirectoryIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "pods"), 0o755); err != nil {
		t.Fatal(err)
	}
	// A link that leads to itself cannot be listed, not even by root.
	if err := os.Symlink("pods", filepath.Join(dir, "plugins")); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "pods", "kubernetes.io")
	if err := os.Symlink(loop, loop); err != nil {
		t.Fatal(err)
	}
	if _, err := listAttempts(dir); err == nil {
		t.Error("no error, so volumes could be overlooked")
	}
}
