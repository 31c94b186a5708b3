package proxy

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// switchable is hardware that a test turns on and off.
type switchable struct{ healthy atomic.Bool }

func (s *switchable) Probe(context.Context, bool) *probe.Result {
	if s.healthy.Load() {
		return &probe.Result{Verdict: probe.Healthy}
	}
	return &probe.Result{Verdict: probe.Unhealthy, Reason: probe.NoDevices, NodeTroubles: []probe.Trouble{{Reason: probe.NoDevices}}}
}

func TestHold(t *testing.T) {
	const hold = 10 * time.Second
	complete := &request{method: csi.Node_NodeStageVolume_FullMethodName, volume: "v", path: "/s"}
	malformed := &request{method: csi.Node_NodeStageVolume_FullMethodName, malformed: "volume_id is missing"}
	for name, tc := range map[string]struct {
		request    *request
		unfinished bool
		after      time.Duration // what happens, happens then
		event      func(hw *switchable, cancel context.CancelFunc, stopping chan struct{})
		want       codes.Code
		wait       time.Duration
	}{
		"the gate stays closed": {request: complete, want: codes.FailedPrecondition, wait: hold},
		"the gate opens": {request: complete, after: 4500 * time.Millisecond, want: codes.OK, wait: 5 * time.Second,
			event: func(hw *switchable, _ context.CancelFunc, _ chan struct{}) { hw.healthy.Store(true) }},
		"unavailable waits too": {request: complete, unfinished: true, want: codes.Unavailable, wait: hold},
		"malformed never waits": {request: malformed, want: codes.InvalidArgument},
		"the caller gives up": {request: complete, after: 2 * time.Second, want: codes.FailedPrecondition, wait: 2 * time.Second,
			event: func(_ *switchable, cancel context.CancelFunc, _ chan struct{}) { cancel() }},
		"shutdown": {request: complete, after: 3 * time.Second, want: codes.FailedPrecondition, wait: 3 * time.Second,
			event: func(_ *switchable, _ context.CancelFunc, stopping chan struct{}) { close(stopping) }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hw := &switchable{}
				monitor := probe.NewMonitor(hw, probe.MonitorConfig{Interval: time.Second, RecoverThreshold: 1})
				run, stop := context.WithCancel(t.Context())
				defer stop()
				go monitor.Run(run)
				synctest.Wait()

				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				stopping := make(chan struct{})
				g := &gate{GateConfig: GateConfig{Health: monitor.Health, Hold: hold}, volumes: newVolumes(), stopping: stopping,
					driverName: func() string { return "" }, mounted: func([]string) (bool, error) { return false, nil }}
				if tc.unfinished {
					end, _ := g.volumes.begin(tc.request)
					end(status.Error(codes.Aborted, ""))
				}
				if tc.event != nil {
					time.AfterFunc(tc.after, func() { tc.event(hw, cancel, stopping) })
				}
				begin := time.Now()
				err := g.admit(ctx, tc.request)
				wantCode(t, "admit", err, tc.want)
				if waited := time.Since(begin); waited != tc.wait {
					t.Errorf("waited %v, want %v", waited, tc.wait)
				}
			})
		})
	}
}
