package proxy

import (
	"context"
	"path"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// GateConfig is the policy for calls that make a mount.
type GateConfig struct {
	// Health returns the newest snapshot.
	Health func() *probe.Health
	// NodeName stands in messages.
	NodeName string
	// Observe lets everything through and only logs what would have been refused.
	Observe bool
	// Volumes limits the gate to volumes that match any of the selectors; empty means all.
	Volumes []VolumeSelector
	// Hold is how long a call that is about to be refused waits for the gate to open.
	Hold time.Duration
}

// gate decides about Stage and Publish. Safe for concurrent use.
type gate struct {
	GateConfig
	volumes *volumes
	// driverName is "" as long as the driver has not told it.
	driverName func() string
	// stopping is closed at shutdown. It ends every wait.
	stopping <-chan struct{}
	// mounted is a seam for tests.
	mounted  func(places []string) (bool, error)
	refusals refusals
}

// decide is the whole policy: nil lets the call pass to the driver, an error is the answer.
func (g *gate) decide(r *request, h *probe.Health) error {
	if h.Open || !g.concerns(r) {
		return nil
	}
	if r.malformed != "" {
		return status.Error(codes.InvalidArgument, r.malformed)
	}
	known := g.volumes.about(r, g.driverName())
	if known.done {
		return nil
	}
	live, err := g.mounted(known.places)
	switch {
	case err != nil:
		return status.Errorf(codes.Unavailable, "%s; Unavailable because the mount table cannot be read, so it may be mounted: %v", g.refusal(r, h), err)
	case live:
		return nil
	case known.inFlight > 0:
		return status.Errorf(codes.Unavailable, "%s; Unavailable because an earlier call for it is still with the driver", g.refusal(r, h))
	case known.unfinished:
		return status.Errorf(codes.Unavailable, "%s; Unavailable because an earlier call for it ended without a final answer, so it may be mounted", g.refusal(r, h))
	case known.inherited:
		return status.Errorf(codes.Unavailable, "%s; Unavailable because kubelet had begun with it before this gate started, so it may be mounted", g.refusal(r, h))
	default:
		return refused(g.refusal(r, h), h)
	}
}

// admit decides about a call, after a wait for the gate to open if Hold allows one.
func (g *gate) admit(ctx context.Context, r *request) error {
	h := g.Health()
	err := g.decide(r, h)
	if g.Observe {
		if err != nil {
			g.record(r, h, err)
		}
		return nil
	}
	if err != nil && g.Hold > 0 && status.Code(err) != codes.InvalidArgument {
		h = g.awaitOpen(ctx, h)
		err = g.decide(r, h)
	}
	if err != nil {
		g.record(r, h, err)
	}
	return err
}

// record counts a refusal and logs it if it is the first of its kind for a while. The line leaves out what
// the message says already, and the caller's line breaks.
func (g *gate) record(r *request, h *probe.Health, err error) {
	refusal := Refusal{Method: path.Base(r.method), Code: status.Code(err), Reason: reason(h), Observed: g.Observe}
	if !g.refusals.count(refusal) {
		return
	}
	said := []any{"message", status.Convert(err).Message()}
	if g.Observe { // it was not said, and says what was not so
		said = []any{"why", h.Why()}
	}
	klog.InfoS(refusal.what(), append([]any{"node", g.NodeName, "method", refusal.Method, "path", OneLine(r.path),
		"code", refusal.Code.String(), "reason", refusal.Reason}, said...)...)
}

// awaitOpen returns the newest Health once the gate is open, or when Hold, the caller's patience
// or this process ends.
func (g *gate) awaitOpen(ctx context.Context, h *probe.Health) *probe.Health {
	timer := time.NewTimer(g.Hold)
	defer timer.Stop()
	for !h.Open {
		select {
		case <-h.Superseded():
			h = g.Health()
		case <-timer.C:
			return g.Health()
		case <-ctx.Done():
			return h
		case <-g.stopping:
			return h
		}
	}
	return h
}

// concerns says whether the volume is one that needs RDMA.
func (g *gate) concerns(r *request) bool {
	if len(g.Volumes) == 0 || r.malformed != "" {
		return true
	}
	for _, s := range g.Volumes {
		if s.matches(r.attributes) {
			return true
		}
	}
	return false
}

// VolumeSelector is one key=value of --gate-volumes.
type VolumeSelector struct{ Key, Value string }

// matches looks at the volume context, the publish context and the mount flags, where options may
// stand one by one or joined by commas.
func (s VolumeSelector) matches(a attributes) bool {
	if v, ok := a.volumeContext[s.Key]; ok && v == s.Value {
		return true
	}
	if v, ok := a.publishContext[s.Key]; ok && v == s.Value {
		return true
	}
	for _, flags := range a.mountFlags {
		for flag := range strings.SplitSeq(flags, ",") {
			if flag == s.Key+"="+s.Value {
				return true
			}
		}
	}
	return false
}
