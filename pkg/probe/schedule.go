package probe

import "time"

// schedule ticks like a time.Ticker, but counts the ticks that fell due while nobody listened.
type schedule struct {
	*time.Timer
	interval time.Duration
	next     time.Time
}

// newSchedule ticks for the first time at once.
func newSchedule(interval time.Duration) *schedule {
	return &schedule{Timer: time.NewTimer(0), interval: interval, next: time.Now()}
}

func (s *schedule) stop() { s.Stop() }

// fired takes note of a tick. A process that was kept from running has missed nothing worth
// counting, so the schedule starts afresh then.
func (s *schedule) fired() {
	now := time.Now()
	s.next = s.next.Add(s.interval)
	if s.next.Before(now) {
		s.next = now.Add(s.interval)
	}
	s.Reset(s.next.Sub(now))
}

// missed counts the ticks that fell due since the last one fired, and skips them.
func (s *schedule) missed() int {
	now := time.Now()
	if now.Before(s.next) {
		return 0
	}
	n := int(now.Sub(s.next)/s.interval) + 1
	s.next = s.next.Add(time.Duration(n) * s.interval)
	s.Reset(s.next.Sub(now))
	return n
}

// extraGap is the least time between two extra probes.
const extraGap = 200 * time.Millisecond

// extras fires for probes that somebody wants, each time at once and again after extraGap.
type extras struct {
	*time.Timer
	left int
	last time.Time
}

func newExtras() *extras {
	t := time.NewTimer(0)
	t.Stop()
	return &extras{Timer: t}
}

func (e *extras) stop() { e.Stop() }

func (e *extras) want() {
	e.left = 2
	e.Reset(time.Until(e.last.Add(extraGap)))
}

func (e *extras) fired() {
	e.last = time.Now()
	if e.left--; e.left > 0 {
		e.Reset(extraGap)
	}
}
