package proxy

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// Refusal is a kind of answer that the gate gave instead of the driver.
type Refusal struct {
	Method string // NodeStageVolume or NodePublishVolume
	Code   codes.Code
	// Reason is the first one for which the gate was closed, or Override.
	Reason string
	// Observed: it would have been given, but the gate only observes.
	Observed bool
}

// refusals counts them. The number of kinds is bounded by the vocabulary of Reasons. Safe for
// concurrent use.
type refusals struct {
	mu    sync.Mutex
	kinds map[Refusal]*tally
}

type tally struct {
	count  uint64
	logged time.Time
	silent uint64 // since then
}

// logInterval is the least time between two lines in the log for refusals of one kind. A node with a
// hundred waiting pods refuses a call every second.
const logInterval = time.Minute

// count counts one and returns whether it is worth a line, and how many alike got none before.
func (rs *refusals) count(r Refusal, now time.Time) (log bool, silent uint64) {
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
	if !t.logged.IsZero() && now.Sub(t.logged) < logInterval {
		t.silent++
		return false, 0
	}
	silent, t.logged, t.silent = t.silent, now, 0
	return true, silent
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

// Stats is what a Server has counted since its start, and what it knows now.
type Stats struct {
	Refusals map[Refusal]uint64
	// Volumes by what is known of them; one volume can be in several states, by its paths.
	InFlight, Done, Unfinished, Inherited int
}

// Stats returns a copy of the counts.
func (s *Server) Stats() Stats {
	st := s.volumes.stats(s.replies.driverName())
	st.Refusals = s.gate.refusals.counts()
	return st
}

func (vs *volumes) stats(driver string) Stats {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	st := Stats{InFlight: vs.calls, Inherited: vs.inherited.count(driver)}
	for _, v := range vs.known {
		done, unfinished := false, false
		for _, records := range v.both() {
			for _, r := range records {
				done = done || r.done
				unfinished = unfinished || r.unfinished
			}
		}
		if done {
			st.Done++
		}
		if unfinished {
			st.Unfinished++
		}
	}
	return st
}
