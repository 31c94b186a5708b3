package probe

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Events has a Monitor probe as soon as the kernel tells of a change, instead of at the next tick.
// It may miss any event and the Monitor is still right, only later: events are a matter of speed.
// A driver that holds the kernel's lock on interfaces holds up Events, but nothing else.
type Events struct {
	health   func() *Health
	kick     func()
	sources  []source
	interest interest
}

// source is where notices come from.
type source struct {
	name string // in the log
	open func() (notices, error)
}

// notices is an open source. Close ends a receive that waits.
type notices interface {
	receive() ([]notice, error)
	Close() error
}

// NewEvents returns Events of the calling process's network namespace, for m to be kicked by.
func NewEvents(m *Monitor) *Events {
	const ownNamespace = 0
	return &Events{
		health:   m.Health,
		kick:     m.Kick,
		sources:  netlinkSources(ownNamespace),
		interest: interest{lookup: netlinkLookup(ownNamespace)},
	}
}

// heard is what a listener passes on.
type heard struct {
	notices []notice
	// missed says that there may have been others.
	missed bool
}

// Run listens until ctx ends.
func (e *Events) Run(ctx context.Context) {
	var listeners sync.WaitGroup
	defer listeners.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ears := make(chan heard)
	for _, s := range e.sources {
		listeners.Go(func() { listen(ctx, s, ears) })
	}
	told := false
	for {
		h := e.health()
		e.interest.follow(h)
		if !told && e.interest.elsewhere() {
			told = true
			klog.InfoS("The interfaces of the selected ports are not in this network namespace, so their events are not heard and the probe's interval is how long a change may go unnoticed; with hostNetwork they would be")
		}
		select {
		case <-ctx.Done():
			return
		case <-h.Superseded():
		case some := <-ears:
			e.hear(some)
		}
	}
}

func (e *Events) hear(some heard) {
	e.interest.follow(e.health())
	if some.missed {
		e.interest.forget()
		e.kick()
	}
	for _, n := range some.notices {
		if e.interest.concerns(n) {
			e.kick()
		}
	}
}

// A source that fails is opened again at once, then after waits that double. One that has worked
// for maxReopenWait starts afresh.
const (
	minReopenWait = 100 * time.Millisecond
	maxReopenWait = time.Minute
)

// listen passes on what a source tells. Sources overflow when the kernel tells more than is read,
// and some are closed to this process; either is worth one line in the log.
func listen(ctx context.Context, s source, ears chan<- heard) {
	var wait time.Duration
	complained := false
	for again := false; ; again = true {
		began := time.Now()
		err := listenOnce(ctx, s, again, ears)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= maxReopenWait {
			wait, complained = 0, false
		}
		if !complained {
			complained = true
			klog.InfoS("Events of the kernel are missed, which the next probes make up for; listening again", "source", s.name, "reason", errText(err))
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		wait = min(max(2*wait, minReopenWait), maxReopenWait)
	}
}

// listenOnce returns why it could not go on.
func listenOnce(ctx context.Context, s source, again bool, ears chan<- heard) error {
	n, err := s.open()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { n.Close() })
	defer func() {
		if stop() {
			n.Close()
		}
	}()
	pass := func(h heard) {
		select {
		case ears <- h:
		case <-ctx.Done():
		}
	}
	if again {
		pass(heard{missed: true}) // once the source is open, so that nothing falls between
	}
	for {
		some, err := n.receive()
		if err != nil {
			return err
		}
		pass(heard{notices: some})
	}
}
