package proxy

import (
	"context"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestReconnectionTakesLessThanASecond(t *testing.T) {
	if longest := time.Duration(float64(connectBackoff.MaxDelay) * (1 + connectBackoff.Jitter)); longest > time.Second {
		t.Errorf("up to %v between two attempts", longest)
	}
}

// A driver that hangs before its gRPC server runs accepts connections and says nothing.
func TestAHalfOpenDriverKeepsTheCallerNoLongerThanItsDeadline(t *testing.T) {
	silentSocket := filepath.Join(t.TempDir(), "driver.sock")
	l, err := net.Listen("unix", silentSocket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	r := newRig(t, func(c *Config) { c.DriverAddress, c.Timeout = silentSocket, 20*time.Millisecond })
	for _, method := range []string{csi.Node_NodeStageVolume_FullMethodName, csi.Node_NodeGetCapabilities_FullMethodName, csi.Identity_Probe_FullMethodName} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := r.raw(ctx, method, nil)
		cancel()
		if code := status.Code(err); code != codes.DeadlineExceeded && code != codes.Unavailable {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// Kubelet has a connection of its own for each call.
func TestConnectionsDoNotPileUp(t *testing.T) {
	r := newRig(t, nil)
	address := r.conn.Target()[len("unix:"):]
	call := func(n int) {
		for range n {
			conn, err := dial(address)
			if err != nil {
				t.Fatal(err)
			}
			if err := publishOnce(conn); err != nil {
				t.Fatal(err)
			}
			_ = conn.Close()
		}
	}
	call(10)
	before := runtime.NumGoroutine()
	call(200)
	for range 1000 {
		if runtime.NumGoroutine() <= before+20 {
			return
		}
		runtime.Gosched() // the last connections are still being closed
		call(1)
	}
	t.Errorf("%d goroutines before 200 connections, %d after", before, runtime.NumGoroutine())
}
