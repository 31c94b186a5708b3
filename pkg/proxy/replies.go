package proxy

import (
	"context"
	"sync"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// replies remembers the driver's last good reply to the calls that say what it is. Kubelet up to
// 1.35 takes any error of NodeGetCapabilities for final, so they are answered even while the
// driver is away. Safe for concurrent use.
type replies struct {
	driver *driver
	// patience is how long a driver may stay silent before the last reply is given instead.
	patience time.Duration

	mu         sync.Mutex
	last       map[string]frame
	name       string // from the last GetPluginInfo
	refreshing map[string]bool
}

func newReplies(patience time.Duration) *replies {
	return &replies{patience: patience, last: map[string]frame{}, refreshing: map[string]bool{}}
}

// ask returns the driver's reply of now, or its last one while it is away (see patience). An
// error that the driver itself has answered is passed on.
func (rs *replies) ask(ctx context.Context, caller grpc.ServerStream, method string, request frame) (frame, error) {
	last, ok := rs.recall(method)
	if !ok {
		// Nothing to fall back on: give a driver that is just coming up the time to do so, and
		// then the caller's whole deadline to answer.
		rs.driver.awaitReady(ctx, method, rs.patience)
		return rs.fetch(ctx, caller, method, request)
	}
	short, cancel := context.WithTimeout(ctx, rs.patience)
	defer cancel()
	reply, err := rs.fetch(short, caller, method, request)
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		if ctx.Err() == nil { // it was not the caller who gave up
			if short.Err() != nil {
				rs.refresh(method, request)
			}
			return last, nil
		}
	}
	return reply, err
}

// refresh asks a driver that is always slower than patience without anybody waiting, so that what it
// says after an update is not covered up for ever. One call per method at a time.
func (rs *replies) refresh(method string, request frame) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.refreshing[method] {
		return
	}
	rs.refreshing[method] = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), refreshTimeout)
		defer cancel()
		_, _ = rs.fetch(ctx, nil, method, request)
		rs.mu.Lock()
		defer rs.mu.Unlock()
		delete(rs.refreshing, method)
	}()
}

// refreshTimeout is kubelet's own for calls of a driver.
const refreshTimeout = 2 * time.Minute

// fetch asks the driver and remembers a good reply.
func (rs *replies) fetch(ctx context.Context, caller grpc.ServerStream, method string, request frame) (frame, error) {
	reply, err := rs.driver.call(ctx, caller, method, request)
	if err == nil {
		rs.remember(method, reply)
	}
	return reply, err
}

func (rs *replies) remember(method string, reply frame) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if method == csi.Identity_GetPluginInfo_FullMethodName {
		var m csi.GetPluginInfoResponse
		if unmarshal(reply, &m) != nil || m.GetName() == "" {
			return // no good reply: volumes and topology go by the name
		}
		rs.name = m.GetName()
	}
	rs.last[method] = reply
}

func (rs *replies) recall(method string) (frame, bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	f, ok := rs.last[method]
	return f, ok
}

// driverName is what the driver calls itself; empty until it has said so.
func (rs *replies) driverName() string {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.name
}

// driverTopology is what the driver itself reports; the bool says whether it has answered yet.
func (rs *replies) driverTopology() (map[string]string, bool) {
	f, ok := rs.recall(csi.Node_NodeGetInfo_FullMethodName)
	var m csi.NodeGetInfoResponse
	_ = unmarshal(f, &m)
	return m.GetAccessibleTopology().GetSegments(), ok
}
