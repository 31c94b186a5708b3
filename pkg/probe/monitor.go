package probe

import (
	"context"
	"sync/atomic"
	"time"
)

// prober is what a Monitor looks through.
type prober interface {
	Probe(ctx context.Context, full bool) *Result
}

// MonitorConfig says how a Monitor turns results into Health.
type MonitorConfig struct {
	// Interval is the time between ticks; 0 means 1s.
	Interval time.Duration
	// UnknownHold is how long an unknown verdict leaves an open gate open.
	UnknownHold time.Duration
	// RecoverThreshold is how many healthy ticks in a row open a closed gate.
	RecoverThreshold int
	// OverrideFile overrules the probe by its first line, "open why" or "closed why"; empty
	// means none.
	OverrideFile string
	// NodeName stands in the log.
	NodeName string
	// NoSelection says that no device was selected, which deserves a word in the log.
	NoSelection bool
}

// Monitor probes again and again and publishes Health. All methods are safe for concurrent use.
type Monitor struct {
	prober   prober
	config   MonitorConfig
	override overrideFile
	kicks    chan struct{}
	current  atomic.Pointer[Health]

	// Only Run touches these.
	gate   gate
	causes causes
	cause  []Trouble // of the newest probe that was not healthy
	log    stateLog
}

// NewMonitor returns a Monitor whose gate is closed until Run has probed.
func NewMonitor(p prober, c MonitorConfig) *Monitor {
	if c.Interval <= 0 {
		c.Interval = time.Second
	}
	m := &Monitor{
		prober:   p,
		config:   c,
		override: overrideFile{lineReader: lineReader{path: c.OverrideFile}},
		kicks:    make(chan struct{}, 1),
		gate:     gate{unknownHold: c.UnknownHold, recoverThreshold: c.RecoverThreshold},
		cause:    []Trouble{{Reason: NotProbedYet}},
		log:      stateLog{node: c.NodeName, noSelection: c.NoSelection, began: map[string]time.Time{}},
	}
	m.current.Store(&Health{
		Result:     Result{Reason: NotProbedYet, NodeTroubles: m.cause},
		Since:      wholeSeconds(time.Now()),
		Cause:      m.cause,
		superseded: make(chan struct{}),
	})
	return m
}

// Health is the newest state. It is never nil.
func (m *Monitor) Health() *Health { return m.current.Load() }

// Kick asks for a full probe before the next tick, at once and again shortly after, since sysfs
// lags behind the events that announce a change. It never blocks.
func (m *Monitor) Kick() {
	select {
	case m.kicks <- struct{}{}:
	default:
	}
}

// Run probes at once and then at every tick until ctx ends.
func (m *Monitor) Run(ctx context.Context) {
	ticks := newSchedule(m.config.Interval)
	defer ticks.stop()
	extras := newExtras()
	defer extras.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-m.kicks:
			extras.want()
		case <-extras.C:
			extras.fired()
			m.extra(ctx, ticks)
		case <-ticks.C:
			ticks.fired()
			m.tick(ctx, ticks)
		}
	}
}

// tick is a light probe that counts. Ticks that fall due while it runs count with it, so that a
// read that hangs does not stop the count.
func (m *Monitor) tick(ctx context.Context, ticks *schedule) {
	override := m.readOverride(ctx)
	begin := time.Now()
	result := m.prober.Probe(ctx, false)
	if ctx.Err() == nil {
		m.publish(result, override, 1+ticks.missed(), time.Since(begin))
	}
}

// extra is a full probe between ticks.
func (m *Monitor) extra(ctx context.Context, ticks *schedule) {
	begin := time.Now()
	result := m.prober.Probe(ctx, true)
	if ctx.Err() == nil {
		m.publish(result, m.Health().Override, ticks.missed(), time.Since(begin))
	}
}

func (m *Monitor) readOverride(ctx context.Context) *Override {
	if m.config.OverrideFile == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, m.config.Interval)
	defer cancel()
	return m.override.look(ctx)
}

// publish derives Health from a result that stands for a number of ticks; none for an extra probe.
func (m *Monitor) publish(r *Result, o *Override, ticks int, took time.Duration) {
	now := time.Now()
	m.gate.step(r.Verdict, ticks > 0, now)
	if steady := m.causes.steady(r.Troubles()); r.Verdict != Healthy {
		m.cause = steady
	}
	old := m.Health()
	h := &Health{
		Result:          *r,
		Probed:          now.UTC(),
		Open:            m.gate.open,
		Override:        o,
		OverrideIgnored: m.override.complaint,
		Since:           old.Since,
		UnhealthyTicks:  old.UnhealthyTicks,
		Decided:         old.Decided || ticks > 0 && r.Verdict != Unknown,
		Probes:          old.Probes,
		ProbeTime:       old.ProbeTime + took,
		Changes:         old.Changes,
		superseded:      make(chan struct{}),
	}
	if o != nil {
		h.Open = o.Open
	} else {
		h.UnhealthyTicks = countUnhealthy(old.UnhealthyTicks, r.Verdict, ticks)
	}
	if !h.Open && o == nil {
		h.Cause = m.cause
	}
	h.Probes[r.Verdict]++
	if h.Open != old.Open {
		h.Since = wholeSeconds(now)
		h.Changes++
	}
	m.log.changed(old, h)
	m.current.Store(h)
	close(old.superseded)
}

func countUnhealthy(before int, v Verdict, ticks int) int {
	switch {
	case v == Unhealthy:
		return before + ticks
	case v == Healthy && ticks > 0:
		return 0
	}
	return before
}

func wholeSeconds(t time.Time) time.Time { return t.UTC().Truncate(time.Second) }
