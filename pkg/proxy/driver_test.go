package proxy

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
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

// A driver allows so many calls at once on a connection. Mounts that hang must not use them up for
// what undoes them.
func TestHungMountsHoldUpNothingElse(t *testing.T) {
	r := newRig(t, nil)
	r.driver.stop()
	r.driver.streams = 3
	r.driver.start(t)
	hung := make(chan struct{}, 3)
	r.driver.set(func(method string, stream grpc.ServerStream, _ frame) error {
		if method == csi.Node_NodeStageVolume_FullMethodName {
			hung <- struct{}{}
			<-stream.Context().Done()
			return stream.Context().Err()
		}
		return stream.SendMsg(&frame{})
	})
	r.Server.driver.awaitReady(t.Context(), csi.Node_NodeStageVolume_FullMethodName, 10*time.Second)
	for i := range 3 {
		go func() { _ = r.stage(fmt.Sprint("v", i), "/s") }()
		<-hung
	}
	for _, method := range []string{
		csi.Node_NodeUnstageVolume_FullMethodName, csi.Node_NodeUnpublishVolume_FullMethodName, csi.Node_NodeGetVolumeStats_FullMethodName,
		csi.Node_NodeExpandVolume_FullMethodName, csi.Identity_Probe_FullMethodName, csi.Node_NodeGetCapabilities_FullMethodName,
	} {
		r.Server.driver.awaitReady(t.Context(), method, 10*time.Second)
		if _, err := r.raw(r.ctx(10*time.Second), method, nil); err != nil {
			t.Errorf("%s: %v", method, err)
		}
	}
}

func TestMethodsThatNobodyKnowsAreCountedAsOne(t *testing.T) {
	var mu sync.Mutex
	counted := map[string]int{}
	r := newRig(t, func(c *Config) {
		c.Record = func(_, method string, _ error, _ time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			counted[method]++
		}
	})
	for i := range 5 {
		_, _ = r.raw(t.Context(), fmt.Sprint("/csi.v1.Node/MadeUp", i), nil)
	}
	_, _ = r.raw(t.Context(), csi.Identity_Probe_FullMethodName, nil)
	mu.Lock()
	defer mu.Unlock()
	if counted["other"] != 5 || counted[csi.Identity_Probe_FullMethodName] != 1 || len(counted) != 2 {
		t.Errorf("%v", counted)
	}
}

// A stream that the driver's side resets looks like its own Internal to gRPC and is Unavailable to the caller, whichever way
// the call took. A handler that aborts, of a plain HTTP/2 server, does that.
func TestWhatIsRecordedOfACallIsWhatItsCallerIsTold(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "driver.sock"))
	if err != nil {
		t.Fatal(err)
	}
	aborting := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	})}
	aborting.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = aborting.Serve(l) }()
	t.Cleanup(func() { _ = aborting.Close() })
	recorded := make(chan error, 1)
	r := newRig(t, func(c *Config) {
		c.DriverAddress = l.Addr().String()
		c.Record = func(_, _ string, err error, _ time.Duration) { recorded <- err }
	})
	for _, method := range []string{
		csi.Node_NodeStageVolume_FullMethodName,    // unary
		csi.Node_NodeGetVolumeStats_FullMethodName, // of any shape
		csi.Node_NodeGetInfo_FullMethodName,        // remembered
	} {
		_, told := r.raw(t.Context(), method, nil)
		record := <-recorded
		if status.Code(told) != codes.Unavailable || status.Convert(record).String() != status.Convert(told).String() {
			t.Errorf("%s: recorded %v, told %v", method, record, told)
		}
	}
}
