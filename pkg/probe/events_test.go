package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// ear is a source that tells what a test says.
type ear struct {
	opened []time.Duration // since the start
	began  time.Time
	refuse error // of open
	said   chan any
}

func newEar() *ear { return &ear{began: time.Now(), said: make(chan any)} }

func (e *ear) open() (notices, error) {
	e.opened = append(e.opened, time.Since(e.began))
	if e.refuse != nil {
		return nil, e.refuse
	}
	return e, nil
}

func (e *ear) receive() ([]notice, error) {
	switch said := (<-e.said).(type) {
	case error:
		return nil, said
	case []notice:
		return said, nil
	}
	return nil, errors.New("closed")
}

func (e *ear) Close() error {
	select {
	case e.said <- nil:
	default:
	}
	return nil
}

// onEns1f0 is a result whose port has that interface.
func onEns1f0(r Result) Result {
	r.Ports = slices.Clone(r.Ports)
	r.Ports[0].Netdevs, r.Ports[0].LinkLayer = []string{"ens1f0"}, Ethernet
	return r
}

// listening runs a Monitor with a healthy port on ens1f0 and Events that a test makes up, from half
// an interval after the first tick.
func listening(t *testing.T, f func(b bench, e *ear)) {
	t.Helper()
	monitored(t, onEns1f0(healthy), MonitorConfig{}, func(b bench) {
		e := newEar()
		events := NewEvents(b.Monitor)
		events.sources = []source{{"test", e.open}}
		events.interest.lookup = namespace{anInterface(2, "ens1f0", nil)}.lookup
		ctx, cancel := context.WithCancel(b.t.Context())
		ended := make(chan struct{})
		go func() { events.Run(ctx); close(ended) }()
		synctest.Wait()
		f(b, e)
		cancel()
		<-ended
	})
}

// extraProbes are those that no tick made.
func (b bench) extraProbes() []string {
	return slices.DeleteFunc(b.script.log(), func(p string) bool { return strings.HasPrefix(p, "light ") })
}

func TestEventProbesAtOnceAndAgain(t *testing.T) {
	listening(t, func(b bench, e *ear) {
		b.script.say(down)
		e.said <- []notice{anInterface(2, "ens1f0", func(l *linkNotice) { l.flags = 0 })}
		synctest.Wait()
		b.wantOpen(false, "link down")
		if got := b.Health().UnhealthyTicks; got != 0 {
			t.Errorf("an event counted as %d ticks", got)
		}
		time.Sleep(300 * time.Millisecond)
		if got, want := b.extraProbes(), []string{"full 500ms", "full 700ms"}; !slices.Equal(got, want) {
			t.Errorf("extra probes %q, want %q", got, want)
		}
	})
}

// A node on which pods come and go: six hundred pods in a minute, a pair of interfaces each.
func TestPodsThatComeAndGoCostNothing(t *testing.T) {
	listening(t, func(b bench, e *ear) {
		b.script.say(onEns1f0(unsure)) // so that a probe too many would show in the thresholds
		for n := range 600 {
			veth := anInterface(100+n, fmt.Sprint("veth", n), func(l *linkNotice) { l.kind, l.lower, l.master = "veth", 3, 7 })
			gone := veth
			gone.gone = true
			e.said <- []notice{veth, addressNotice{index: 100 + n, address: "a"}, deviceNotice{"add", "net", veth.name}}
			// A macvlan on the selected interface makes that one promiscuous: a notice without news.
			if n > 0 {
				e.said <- []notice{anInterface(2, "ens1f0", nil)}
			}
			e.said <- []notice{gone, deviceNotice{"remove", "net", veth.name}}
			time.Sleep(100 * time.Millisecond)
		}
		if got := len(b.script.log()); got != 61+2 { // the first news of ens1f0 is news
			t.Errorf("%d probes in a minute: extra ones %q", got, b.extraProbes())
		}
		if h := b.Health(); h.UnhealthyTicks != 0 || h.Open {
			t.Errorf("%+v", h)
		}
	})
}

func TestFloodOfEventsCostsFiveProbesASecond(t *testing.T) {
	listening(t, func(b bench, e *ear) {
		for n := range 950 {
			e.said <- []notice{addressNotice{index: 2, address: fmt.Sprint(n)}}
			time.Sleep(time.Millisecond)
		}
		if got := len(b.extraProbes()); got > 5 {
			t.Errorf("%d extra probes: %q", got, b.extraProbes())
		}
	})
}

func TestLostEventsAreMadeUpFor(t *testing.T) {
	lines := captureLog(t)
	listening(t, func(b bench, e *ear) {
		start := time.Since(e.began)
		e.said <- errors.New("no buffer space available")
		synctest.Wait()
		if got := len(b.extraProbes()); got != 1 {
			t.Errorf("%d probes at once, want one", got)
		}
		for range 3 {
			e.said <- errors.New("no buffer space available")
			time.Sleep(time.Second)
		}
		synctest.Wait()
		want := []time.Duration{0, 0, 100 * time.Millisecond, 1200 * time.Millisecond, 2400 * time.Millisecond}
		for i := range want {
			want[i] += start
		}
		if !slices.Equal(e.opened, want) {
			t.Errorf("opened at %v, want %v", e.opened, want)
		}
		// One that has worked long enough starts afresh.
		time.Sleep(2 * time.Minute)
		b.script.say(down)
		e.said <- errors.New("no buffer space available")
		synctest.Wait()
		b.wantOpen(false, "events were lost")
		e.said <- []notice{anInterface(2, "ens1f0", nil)}
		synctest.Wait()
	})
	complaints := slices.DeleteFunc(*lines, func(l string) bool { return !strings.Contains(l, "are missed") })
	if len(complaints) != 2 || !strings.Contains(complaints[0], "no buffer space available") {
		t.Errorf("%q", complaints)
	}
}

func TestSourceThatCannotBeOpened(t *testing.T) {
	lines := captureLog(t)
	monitored(t, healthy, MonitorConfig{}, func(b bench) {
		e := newEar()
		e.refuse = errors.New("operation not permitted")
		events := NewEvents(b.Monitor)
		events.sources = []source{{"test", e.open}}
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Hour)
		defer cancel()
		events.Run(ctx)
		if n := len(e.opened); n < 60 || n > 80 {
			t.Errorf("opened %d times in an hour", n)
		}
		if extra := b.extraProbes(); len(extra) > 0 {
			t.Errorf("probes for nothing: %q", extra)
		}
	})
	complaints := slices.DeleteFunc(*lines, func(l string) bool { return !strings.Contains(l, "operation not permitted") })
	if len(complaints) != 1 {
		t.Errorf("%q", complaints)
	}
}

func TestInterfacesElsewhereAreWorthOneLine(t *testing.T) {
	lines := captureLog(t)
	monitored(t, unsure, MonitorConfig{}, func(b bench) {
		events := NewEvents(b.Monitor)
		events.sources = nil
		events.interest.lookup = namespace{}.lookup
		ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
		defer cancel()
		time.AfterFunc(10*time.Second, func() { b.script.say(onEns1f0(healthy)) })
		events.Run(ctx)
	})
	told := slices.DeleteFunc(*lines, func(l string) bool { return !strings.Contains(l, "hostNetwork") })
	if len(told) != 1 {
		t.Errorf("%q", told)
	}
}

func TestEventIsJudgedByTheNewestSelection(t *testing.T) {
	h := &Health{}
	kicks := 0
	e := &Events{
		health:   func() *Health { return h },
		kick:     func() { kicks++ },
		interest: interest{lookup: namespace{anInterface(2, "ens1f0", nil)}.lookup},
	}
	e.hear(heard{notices: []notice{anInterface(2, "ens1f0", nil)}})
	if kicks != 0 {
		t.Errorf("%d kicks before anything was selected", kicks)
	}
	h = &Health{Result: onEns1f0(healthy)}
	e.hear(heard{notices: []notice{addressNotice{index: 2, address: "a"}}})
	if kicks != 1 {
		t.Errorf("%d kicks, want one", kicks)
	}
}
