package dirdriver_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/driver/dirdriver"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// run starts a driver on dir and returns a connection to it and a way to end it.
func run(t *testing.T, dir string, cfg dirdriver.Config) (*grpc.ClientConn, func()) {
	t.Helper()
	cfg.Name, cfg.NodeID, cfg.StateDir = "nfs.example.com", "n", filepath.Join(dir, "state")
	d, err := dirdriver.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	sock := filepath.Join(dir, "csi.sock")
	l, err := dirdriver.Listen(sock)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Serve(ctx, l) }()
	conn, err := grpc.NewClient("unix:"+sock, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return conn, func() {
		conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "driver-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
	}
}

func TestRestartInTheMiddle(t *testing.T) {
	dir := shortDir(t)
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	if err := os.Mkdir(staging, 0o750); err != nil {
		t.Fatal(err)
	}
	var calls bytes.Buffer
	for _, step := range []struct {
		name string
		call func(context.Context, csi.NodeClient) error
		want codes.Code
	}{
		{"publish before stage", publish(staging, target, false), codes.FailedPrecondition},
		{"stage", stage(staging), codes.OK},
		{"stage again", stage(staging), codes.OK},
		{"publish", publish(staging, target, true), codes.OK},
		{"publish again", publish(staging, target, true), codes.OK},
		{"publish otherwise", publish(staging, target, false), codes.AlreadyExists},
		{"stats", stats(target), codes.OK},
		{"unpublish", unpublish(target), codes.OK},
		{"unpublish again", unpublish(target), codes.OK},
		{"stats of what is gone", stats(target), codes.NotFound},
		{"unstage", unstage(staging), codes.OK},
		{"unstage again", unstage(staging), codes.OK},
	} {
		// Every step on a driver of its own, which knows only what the last one left behind.
		conn, stop := run(t, dir, dirdriver.Config{Calls: &calls})
		err := step.call(t.Context(), csi.NewNodeClient(conn))
		stop()
		if status.Code(err) != step.want {
			t.Errorf("%s: %v, want %s", step.name, err, step.want)
		}
	}
	if _, err := os.Stat(target); !os.IsNotExist(err) {
		t.Errorf("target directory after unpublish: %v", err)
	}
	if left, err := os.ReadDir(staging); err != nil || len(left) > 0 {
		t.Errorf("staging directory after unstage: %v, %v", left, err)
	}
	for _, want := range []string{"NodeStageVolume vol-1 ok\nNodeStageVolume vol-1 ok\n", "NodePublishVolume vol-1 AlreadyExists: "} {
		if !strings.Contains(calls.String(), want) {
			t.Errorf("calls do not contain %q:\n%s", want, calls.String())
		}
	}
}

func TestPlacesOfOtherVolumesAreLeftAlone(t *testing.T) {
	dir := shortDir(t)
	staging := filepath.Join(dir, "staging")
	if err := os.Mkdir(staging, 0o750); err != nil {
		t.Fatal(err)
	}
	conn, stop := run(t, dir, dirdriver.Config{})
	defer stop()
	node := csi.NewNodeClient(conn)
	if err := stage(staging)(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unstage(staging)(t.Context(), node); err != nil {
			t.Error(err)
		}
	}()
	_, err := node.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "vol-2", StagingTargetPath: staging, VolumeCapability: capability()})
	if status.Code(err) != codes.AlreadyExists {
		t.Errorf("another volume staged at the same place: %v", err)
	}
	_, err = node.NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "vol-2", StagingTargetPath: staging})
	if status.Code(err) != codes.FailedPrecondition {
		t.Errorf("another volume unstaged: %v", err)
	}
}

func stage(path string) func(context.Context, csi.NodeClient) error {
	return func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "vol-1", StagingTargetPath: path, VolumeCapability: capability()})
		return err
	}
}

func unstage(path string) func(context.Context, csi.NodeClient) error {
	return func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: "vol-1", StagingTargetPath: path})
		return err
	}
}

func publish(staging, target string, readonly bool) func(context.Context, csi.NodeClient) error {
	return func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
			VolumeId: "vol-1", StagingTargetPath: staging, TargetPath: target, VolumeCapability: capability(), Readonly: readonly,
		})
		return err
	}
}

func unpublish(target string) func(context.Context, csi.NodeClient) error {
	return func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "vol-1", TargetPath: target})
		return err
	}
}

func stats(path string) func(context.Context, csi.NodeClient) error {
	return func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: "vol-1", VolumePath: path})
		return err
	}
}
