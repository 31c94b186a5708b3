package harness

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
)

// Presence knows when the driver was in CSINode and when it was not. While the API server cannot be
// asked, what it said last counts. It is safe for concurrent use.
type Presence struct {
	stop context.CancelFunc
	done chan struct{}

	mu sync.Mutex
	// changes are the moments at which the driver left CSINode (even indices) and was back (odd ones).
	changes []time.Time
}

// WatchPresence starts to watch CSINode, in which the driver is now. Stop ends it.
func (s *Scene) WatchPresence() *Presence {
	ctx, stop := context.WithCancel(s.Node.Context())
	p := &Presence{stop: stop, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for ctx.Err() == nil {
			// A watch ends from time to time, and when the API server goes.
			_ = s.Node.Watch(ctx, p.see, "get", "csinode", node.Name, "--watch", `--output=jsonpath={.spec.drivers[*].name}{"\n"}`)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
	return p
}

// Stop ends the watch.
func (p *Presence) Stop() {
	p.stop()
	<-p.done
}

// see takes the names of CSINode's drivers.
func (p *Presence) see(drivers string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	present := len(p.changes)%2 == 0
	if slices.Contains(strings.Fields(drivers), DriverName) != present {
		p.changes = append(p.changes, time.Now())
	}
}

// MissingSince says how long, in all, the driver has not been in CSINode since then.
func (p *Presence) MissingSince(then time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var missing time.Duration
	for i := 0; i < len(p.changes); i += 2 {
		left, back := p.changes[i], time.Now()
		if i+1 < len(p.changes) {
			back = p.changes[i+1]
		}
		if left.Before(then) {
			left = then
		}
		missing += max(0, back.Sub(left))
	}
	return missing
}
