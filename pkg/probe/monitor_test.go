package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// script is a prober that says what it is told.
type script struct {
	mu     sync.Mutex
	result Result
	takes  time.Duration
	probes []string // "light" or "full" and when, in milliseconds since the start
	began  time.Time
}

func (s *script) Probe(ctx context.Context, full bool) *Result {
	s.mu.Lock()
	kind := "light"
	if full {
		kind = "full"
	}
	s.probes = append(s.probes, kind+" "+time.Since(s.began).String())
	takes := s.takes
	s.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.result
	return &r
}

// slow makes every probe take its time.
func (s *script) slow(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes = d
}

// log is what was probed, and when.
func (s *script) log() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.probes)
}

func (s *script) say(r Result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.result = r
}

// portSays is the result of a node with one port.
func portSays(reason Reason, detail string) Result {
	return Result{
		Verdict: reason.Verdict(), Reason: reason,
		Ports: []Port{{Device: "mlx5_0", Number: 1, Verdict: reason.Verdict(), Reason: reason, Detail: detail}},
	}
}

var (
	healthy = portSays("", "")
	down    = portSays(PhysLinkDown, "state 1: DOWN, phys_state 2: Polling")
	unsure  = portSays(AttributeUnreadable, "state unreadable: input/output error")
)

// bench is a Monitor that runs in a bubble of fake time.
type bench struct {
	*Monitor
	script *script
	t      *testing.T
}

// monitored runs f half an interval after the first tick of a Monitor, so that ticks and what f
// does never coincide.
func monitored(t *testing.T, first Result, c MonitorConfig, f func(b bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if c.UnknownHold == 0 {
			c.UnknownHold = 30 * time.Second
		}
		if c.RecoverThreshold == 0 {
			c.RecoverThreshold = 3
		}
		b := bench{script: &script{result: first, began: time.Now()}, t: t}
		b.Monitor = NewMonitor(b.script, c)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { b.Run(ctx); close(ended) }()
		time.Sleep(500 * time.Millisecond)
		f(b)
		cancel()
		<-ended
	})
}

// ticks lets n ticks pass.
func (b bench) ticks(n int) {
	time.Sleep(time.Duration(n) * time.Second)
	synctest.Wait()
}

func (b bench) wantOpen(open bool, why string) {
	b.t.Helper()
	if h := b.Health(); h.Open != open {
		b.t.Errorf("%s: open is %v, want %v (%+v)", why, h.Open, open, h)
	}
}

func (b bench) wantCause(texts ...string) {
	b.t.Helper()
	if got := joinTroubles(b.Health().Cause); got != strings.Join(texts, "; ") {
		b.t.Errorf("cause %q, want %q", got, texts)
	}
}

func TestHealthBeforeTheFirstProbe(t *testing.T) {
	h := NewMonitor(&script{}, MonitorConfig{}).Health()
	if h.Open || h.Verdict != Unknown || h.Reason != NotProbedYet || h.Decided || h.Recovering() || h.Superseded() == nil {
		t.Errorf("%+v", h)
	}
	if got := joinTroubles(h.Cause); got != "NotProbedYet" {
		t.Error(got)
	}
}

func TestFirstHealthyTickOpens(t *testing.T) {
	monitored(t, healthy, MonitorConfig{}, func(b bench) {
		b.wantOpen(true, "after the first tick")
		if h := b.Health(); !h.Decided || len(h.Cause) != 0 {
			t.Errorf("%+v", h)
		}
	})
}

func TestFirstHealthyTickOpensEvenIfOthersCameBefore(t *testing.T) {
	monitored(t, down, MonitorConfig{}, func(b bench) {
		b.ticks(5)
		b.wantOpen(false, "while down")
		b.script.say(healthy)
		b.ticks(1)
		b.wantOpen(true, "driver loaded late")
	})
}

func TestUnhealthyClosesAtOnceAndThresholdReopens(t *testing.T) {
	monitored(t, healthy, MonitorConfig{}, func(b bench) {
		b.script.say(down)
		b.ticks(1)
		b.wantOpen(false, "one unhealthy tick")
		b.script.say(healthy)
		b.ticks(1)
		b.wantOpen(false, "one healthy tick")
		if !b.Health().Recovering() {
			t.Error("not recovering")
		}
		b.wantCause("mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling)")
		b.ticks(1)
		b.wantOpen(false, "two healthy ticks")
		b.ticks(1)
		b.wantOpen(true, "three healthy ticks")
		b.wantCause()
	})
}

func TestHealthyTicksMustBeInARow(t *testing.T) {
	for name, between := range map[string]Result{"unhealthy": down, "unknown": unsure} {
		t.Run(name, func(t *testing.T) {
			monitored(t, healthy, MonitorConfig{}, func(b bench) {
				b.script.say(down)
				b.ticks(1)
				b.script.say(healthy)
				b.ticks(2)
				b.script.say(between)
				b.ticks(1)
				b.script.say(healthy)
				b.ticks(2)
				b.wantOpen(false, "two in a row")
				b.ticks(1)
				b.wantOpen(true, "three in a row")
			})
		})
	}
}

func TestUnknownKeepsTheLastStateForTheHold(t *testing.T) {
	monitored(t, healthy, MonitorConfig{UnknownHold: 30 * time.Second}, func(b bench) {
		b.script.say(unsure)
		b.ticks(30)
		b.wantOpen(true, "29 seconds after the first unknown verdict")
		b.wantCause()
		b.ticks(1)
		b.wantOpen(false, "30 seconds after it")
		b.wantCause("mlx5_0/1 AttributeUnreadable (state unreadable: input/output error)")
		b.script.say(healthy)
		b.ticks(3)
		b.wantOpen(true, "three healthy ticks")
		if b.Health().UnhealthyTicks != 0 {
			t.Error("unknown ticks counted as unhealthy")
		}
	})
}

func TestUnknownAtStartStaysClosed(t *testing.T) {
	monitored(t, unsure, MonitorConfig{}, func(b bench) {
		b.wantOpen(false, "unknown at start")
		if b.Health().Decided {
			t.Error("decided by an unknown verdict")
		}
		b.wantCause("mlx5_0/1 AttributeUnreadable (state unreadable: input/output error)")
	})
}

func TestUnhealthyTicksCountInARow(t *testing.T) {
	monitored(t, down, MonitorConfig{}, func(b bench) {
		for _, step := range []struct {
			say  Result
			n    int
			want int
		}{{down, 4, 5}, {unsure, 3, 5}, {down, 2, 7}, {healthy, 1, 0}, {unsure, 1, 0}, {down, 1, 1}} {
			b.script.say(step.say)
			b.ticks(step.n)
			if got := b.Health().UnhealthyTicks; got != step.want {
				t.Errorf("after %d %v: %d, want %d", step.n, step.say.Verdict, got, step.want)
			}
		}
	})
}

func TestTicksGoOnCountingDuringSlowProbes(t *testing.T) {
	monitored(t, down, MonitorConfig{}, func(b bench) {
		b.script.slow(3 * time.Second)
		b.ticks(20)
		if got := b.Health().UnhealthyTicks; got < 18 || got > 21 {
			t.Errorf("%d unhealthy ticks in 20 seconds", got)
		}
	})
}

func TestSlowHealthyProbeCountsOnce(t *testing.T) {
	monitored(t, healthy, MonitorConfig{}, func(b bench) {
		b.script.say(down)
		b.ticks(1)
		b.script.say(healthy)
		b.script.slow(5 * time.Second)
		b.ticks(7)
		b.wantOpen(false, "one slow healthy probe")
	})
}

func TestEachTickPublishesAndSupersedes(t *testing.T) {
	monitored(t, healthy, MonitorConfig{}, func(b bench) {
		for range 3 {
			h := b.Health()
			select {
			case <-h.Superseded():
				t.Fatal("superseded although it is the newest")
			case <-time.After(400 * time.Millisecond):
			}
			<-h.Superseded()
			if b.Health() == h {
				t.Error("superseded by itself")
			}
		}
	})
}

func TestSinceIsWhenTheGateLastChanged(t *testing.T) {
	monitored(t, down, MonitorConfig{}, func(b bench) {
		start := b.Health().Since
		b.ticks(4)
		if got := b.Health().Since; !got.Equal(start) || got.Location() != time.UTC || got.Nanosecond() != 0 {
			t.Errorf("since %v, started %v", got, start)
		}
		b.script.say(healthy)
		b.ticks(3)
		if got := b.Health().Since; !got.Equal(start.Add(5 * time.Second)) {
			t.Errorf("opened %v, started %v", got, start)
		}
	})
}

func TestCauseKeepsTheFirstRawValues(t *testing.T) {
	polling := portSays(PhysLinkDown, "state 1: DOWN, phys_state 2: Polling")
	disabled := portSays(PhysLinkDown, "state 1: DOWN, phys_state 3: Disabled")
	monitored(t, polling, MonitorConfig{}, func(b bench) {
		b.script.say(disabled)
		b.ticks(2)
		b.wantCause("mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling)")
		b.script.say(portSays(PortNotActive, "state 2: INIT, phys_state 5: LinkUp"))
		b.ticks(1)
		b.wantCause("mlx5_0/1 PortNotActive (state 2: INIT, phys_state 5: LinkUp)")
		b.script.say(disabled)
		b.ticks(1)
		b.wantCause("mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 3: Disabled)")
	})
}

func TestCauseNamesUnhealthyAndUnknownPorts(t *testing.T) {
	both := down
	both.Ports = append(slices.Clone(down.Ports), Port{Device: "mlx5_1", Number: 1, Reason: AttributeUnreadable, Detail: "state unreadable: empty"})
	both.NodeTroubles = []Trouble{{Subject: "mlx5_9", Reason: DeviceMissing}}
	monitored(t, both, MonitorConfig{}, func(b bench) {
		b.wantCause("mlx5_9 DeviceMissing", "mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling)",
			"mlx5_1/1 AttributeUnreadable (state unreadable: empty)")
	})
}

func TestKickProbesAtOnceAndAgain(t *testing.T) {
	monitored(t, healthy, MonitorConfig{}, func(b bench) {
		b.script.say(down)
		b.Kick()
		synctest.Wait()
		b.wantOpen(false, "an extra probe closes")
		if h := b.Health(); h.UnhealthyTicks != 0 {
			t.Errorf("an extra probe counted: %d", h.UnhealthyTicks)
		}
		time.Sleep(300 * time.Millisecond)
		want := []string{"light 0s", "full 500ms", "full 700ms"}
		if got := b.script.log(); !slices.Equal(got, want) {
			t.Errorf("probes %q, want %q", got, want)
		}
	})
}

func TestExtraProbesNeverOpenTheGate(t *testing.T) {
	monitored(t, healthy, MonitorConfig{}, func(b bench) {
		b.script.say(down)
		b.ticks(1)
		b.script.say(healthy)
		for range 40 {
			b.Kick()
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		b.wantOpen(false, "extra probes only")
		b.ticks(2)
		b.wantOpen(false, "two ticks")
		b.ticks(1)
		b.wantOpen(true, "three ticks")
	})
}

func TestExtraProbesAreRare(t *testing.T) {
	monitored(t, healthy, MonitorConfig{}, func(b bench) {
		for range 950 {
			b.Kick()
			time.Sleep(time.Millisecond)
		}
		want := []string{"light 0s", "full 500ms", "full 700ms", "full 900ms", "light 1s", "full 1.1s", "full 1.3s"}
		if got := b.script.log(); !slices.Equal(got, want) {
			t.Errorf("probes %q, want %q", got, want)
		}
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{result: healthy, takes: time.Hour, began: time.Now()}
		m := NewMonitor(s, MonitorConfig{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		m.Run(ctx)
		if m.Health().Reason != NotProbedYet {
			t.Error("published what a cancelled probe said")
		}
	})
}

func TestOverride(t *testing.T) {
	file := filepath.Join(t.TempDir(), "override")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	monitored(t, down, MonitorConfig{OverrideFile: file}, func(b bench) {
		b.wantOpen(false, "no file")
		write("open fabric test in cell 4\n")
		b.ticks(1)
		b.wantOpen(true, "overridden")
		b.wantCause()
		if o := b.Health().Override; o == nil || o.Why != "fabric test in cell 4" {
			t.Errorf("%+v", o)
		}
		before := b.Health().UnhealthyTicks
		b.ticks(5)
		if after := b.Health().UnhealthyTicks; after != before {
			t.Errorf("ticks under an override counted: %d, then %d", before, after)
		}

		os.Remove(file)
		b.ticks(1)
		b.wantOpen(false, "lifted while down")
		b.wantCause("mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling)")

		b.script.say(healthy)
		write("closed draining for firmware")
		b.ticks(5)
		b.wantOpen(false, "overridden")
		if h := b.Health(); h.Recovering() || len(h.Cause) != 0 || h.Override == nil {
			t.Errorf("%+v", h)
		}
		os.Remove(file)
		b.ticks(1)
		b.wantOpen(true, "lifted while healthy")

		write("please open\n")
		b.ticks(1)
		b.wantOpen(true, "malformed is none")
		if b.Health().Override != nil {
			t.Error("malformed override in force")
		}
	})
}

func TestOverrideFileThatHangs(t *testing.T) {
	release := make(chan struct{})
	f := overrideFile{lineReader: lineReader{path: filepath.Join(t.TempDir(), "override")}}
	f.call.start(func() line { <-release; return line{} })
	for range 3 {
		if o := f.look(t.Context()); o != nil {
			t.Errorf("%+v", o)
		}
	}
	if f.complaint != errStuck.Error() {
		t.Error(f.complaint)
	}
	close(release)
}

func TestAPipeIsNoOverrideFileAndHoldsUpNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "override")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f := overrideFile{lineReader: lineReader{path: path}}
	if o := f.look(t.Context()); o != nil || f.complaint != errNoFile.Error() {
		t.Errorf("%+v, %q", o, f.complaint)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("open at last\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if o := f.look(t.Context()); o == nil || !o.Open || o.Why != "at last" {
		t.Errorf("%+v, %q", o, f.complaint)
	}
}
