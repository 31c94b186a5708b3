package main

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// hangingDriver is a fake driver whose NodeStageVolume waits until it is released.
type hangingDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	called, release chan struct{}
}

func (d *hangingDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: "rdma.example.com", VendorVersion: "1"}, nil
}

func (d *hangingDriver) NodeStageVolume(ctx context.Context, _ *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	close(d.called)
	select {
	case <-d.release:
		return &csi.NodeStageVolumeResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// startGate runs the gate as a process of its own on a node without RDMA, where that is allowed.
func startGate(t *testing.T, n node, flags ...string) (gate *exec.Cmd, conn *grpc.ClientConn) {
	t.Helper()
	driver := filepath.Join(n.dir, "driver.sock")
	gate = exec.CommandContext(t.Context(), os.Args[0], append([]string{"--csi-address=" + driver, "--kubelet-registration-path=" + n.socket,
		"--plugin-registration-path=" + n.registry, "--host-root=" + n.dir, "--rdma-absent=open"}, flags...)...)
	gate.Env = append(os.Environ(), "RUN_AS_COMMAND=1")
	var log bytes.Buffer
	gate.Stderr = &log
	if err := gate.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			_ = gate.Process.Kill()
			t.Logf("%s", log.Bytes())
		}
	})
	conn, err := grpc.NewClient("unix:"+n.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return gate, conn
}

func serveDriver(t *testing.T, n node) *hangingDriver {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(n.dir, "driver.sock"))
	if err != nil {
		t.Fatal(err)
	}
	d := &hangingDriver{called: make(chan struct{}), release: make(chan struct{})}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return d
}

// endsWell waits for exit status 0 and for both sockets to be gone.
func endsWell(t *testing.T, gate *exec.Cmd, n node) {
	t.Helper()
	if err := gate.Wait(); err != nil {
		t.Errorf("the gate ended with %v", err)
	}
	for _, dir := range []string{filepath.Dir(n.socket), n.registry} {
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			t.Errorf("left behind in %s: %v", dir, entries)
		}
	}
}

// Kubelet sends SIGTERM again after a restart of its own.
func TestASecondSIGTERMDoesNotCutCallsOff(t *testing.T) {
	n := newNode(t)
	driver := serveDriver(t, n)
	gate, conn := startGate(t, n, "--shutdown-timeout=1h")
	staged := make(chan error, 1)
	go func() {
		_, err := csi.NewNodeClient(conn).NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{
			VolumeId: "v", StagingTargetPath: "/s", VolumeCapability: &csi.VolumeCapability{},
		}, grpc.WaitForReady(true))
		staged <- err
	}()
	<-driver.called
	for range 3 {
		if err := gate.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		// The gate still serves: a call that it answers by itself comes back.
		if err := conn.Invoke(t.Context(), "/not.csi/Method", &csi.ProbeRequest{}, &csi.ProbeResponse{}); status.Code(err) != codes.Unimplemented {
			t.Errorf("after SIGTERM: %v", err)
		}
	}
	close(driver.release)
	if err := <-staged; err != nil {
		t.Errorf("the call in flight: %v", err)
	}
	_ = conn.Close()
	endsWell(t, gate, n)
}

// A client that connects and says nothing keeps no gate alive.
func TestASilentConnectionDoesNotHoldTheShutdownUp(t *testing.T) {
	n := newNode(t)
	serveDriver(t, n)
	gate, conn := startGate(t, n, "--shutdown-timeout=1h")
	if _, err := csi.NewIdentityClient(conn).GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Dial("unix", n.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	if err := gate.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	endsWell(t, gate, n)
}
