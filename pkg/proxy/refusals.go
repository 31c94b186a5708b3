package proxy

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// Refusal is a kind of answer that the gate gave instead of the driver. There are as many kinds as the vocabulary of Reasons
// allows, whatever volumes are refused.
type Refusal struct {
	Method string // NodeStageVolume or NodePublishVolume
	Code   codes.Code
	// Reason is the first one for which the gate was closed, or Override.
	Reason string
	// Observed: it would have been given, but the gate only observes.
	Observed bool
}

// what says of a line in the log what happened.
func (r Refusal) what() string {
	if r.Observed {
		return "Would have refused"
	}
	return "Refused"
}

// refusals counts the refusals of each kind and decides which are worth a line in the log: a node with a hundred waiting
// pods refuses a call every second. Safe for concurrent use.
type refusals struct {
	node string

	mu    sync.Mutex
	kinds map[Refusal]*tally
}

type tally struct {
	count  uint64
	unsaid uint64 // without a line in the log so far
	// quiet: there was a line within the last sumInterval, so that the next ones wait for its end.
	quiet bool
}

// sumInterval is how long refusals of one kind are only counted after one was logged. Then a line says how many they were.
const sumInterval = time.Minute

// count counts one and returns whether it gets a line of its own.
func (rs *refusals) count(r Refusal) (own bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.kinds == nil {
		rs.kinds = map[Refusal]*tally{}
	}
	t := rs.kinds[r]
	if t == nil {
		t = &tally{}
		rs.kinds[r] = t
	}
	t.count++
	if t.quiet {
		t.unsaid++
		return false
	}
	t.quiet = true
	time.AfterFunc(sumInterval, func() { rs.intervalEnded(r) })
	return true
}

func (rs *refusals) intervalEnded(r Refusal) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	t := rs.kinds[r]
	if t.quiet = t.unsaid > 0; t.quiet {
		rs.sumUp(r, t)
		time.AfterFunc(sumInterval, func() { rs.intervalEnded(r) })
	}
}

// sumUp writes a line for those that got none. The caller holds mu.
func (rs *refusals) sumUp(r Refusal, t *tally) {
	klog.InfoS(r.what()+" more of the same", "node", rs.node, "method", r.Method, "code", r.Code.String(), "reason", r.Reason,
		"calls", t.unsaid, "total", t.count)
	t.unsaid = 0
}

// sumUpAll leaves nothing unsaid at shutdown.
func (rs *refusals) sumUpAll() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for r, t := range rs.kinds {
		if t.unsaid > 0 {
			rs.sumUp(r, t)
		}
	}
}

func (rs *refusals) counts() map[Refusal]uint64 {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	counts := make(map[Refusal]uint64, len(rs.kinds))
	for r, t := range rs.kinds {
		counts[r] = t.count
	}
	return counts
}

func reason(h *probe.Health) string {
	if h.Override != nil {
		return "Override"
	}
	if len(h.Cause) > 0 {
		return string(h.Cause[0].Reason)
	}
	return string(h.Reason)
}
