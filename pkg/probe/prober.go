package probe

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Config says what a Prober looks at and what it demands.
type Config struct {
	// Root is where the host's /sys and /dev are mounted; empty means "/".
	Root string
	// Selectors name the ports that carry storage. Without any, every device counts except
	// virtual functions and those whose driver reports constants.
	Selectors []Selector
	Require   Require
	Checks    Checks
	// AbsentOpen makes a node without RDMA devices healthy, unless this Prober has seen one.
	AbsentOpen bool
	// Timeout is how long a read may take before its device counts as stuck; 0 means 3s.
	Timeout time.Duration

	// MinRateGbps is the least rate of an active port; 0 means any.
	MinRateGbps float64
	// Modules are kernel modules that must be loaded.
	Modules []string
	// HealthFile is written by some other check: its first line is "OK" or "ERROR text". Empty
	// means none. Older than HealthFileMaxAge (0 means 60s) it says nothing.
	HealthFile       string
	HealthFileMaxAge time.Duration
	// Resources are extended resources that kubelet must advertise. PodResourcesSocket is where
	// it is asked.
	Resources          []string
	PodResourcesSocket string
}

func (c Config) withDefaults() Config {
	if c.Root == "" {
		c.Root = "/"
	}
	if c.Timeout <= 0 {
		c.Timeout = 3 * time.Second
	}
	return c
}

// refreshEvery is how often everything is read, whether or not a light probe saw a change. What is
// not healthy is read more often, so that nobody waits half a minute for what has been mended.
const (
	refreshEvery        = 30 * time.Second
	refreshTroubleEvery = 5 * time.Second
)

// Prober looks at the hardware. It is safe for concurrent use, but does one probe at a time.
type Prober struct {
	config  Config
	fs      fsys
	layers  layers
	checks  []nodeCheck
	kubelet *resourceCheck // one of checks, or nil

	mu      sync.Mutex // held during a probe
	listing call[listing]
	// The entries of the last listing; as names, in natural order; and those that may be selected.
	entries, names, candidates []string
	listedAt                   time.Time
	settled                    bool // nothing that is selected was missing or stuck
	troubled                   bool // the node was not healthy
	devices                    map[string]*target
	seen                       bool // a selected port, ever
}

// nodeCheck looks at something that concerns no single port.
type nodeCheck interface {
	// troubles is given whether to read what seldom changes.
	troubles(ctx context.Context, full bool) []Trouble
}

// target is a device that is looked at again and again.
type target struct {
	call[*sighting]
	reader reader
	last   *sighting
	// early is what a look had found out when it got as far as the port numbers.
	early atomic.Pointer[sighting]
}

// New returns a Prober that has not looked yet.
func New(c Config) *Prober {
	c = c.withDefaults()
	return newProber(c, rootFS(c.Root))
}

func newProber(c Config, fs fsys) *Prober {
	c = c.withDefaults()
	p := &Prober{
		config:  c,
		fs:      fs,
		layers:  layers{Checks: c.Checks.withDefault(), minRateGbps: c.MinRateGbps},
		devices: make(map[string]*target),
	}
	if len(c.Modules) > 0 {
		p.checks = append(p.checks, &moduleCheck{reader: reader{fs: fs}, modules: c.Modules})
	}
	if c.HealthFile != "" {
		p.checks = append(p.checks, newHealthFile(c.HealthFile, c.HealthFileMaxAge))
	}
	if len(c.Resources) > 0 {
		p.kubelet = newResourceCheck(c)
		p.checks = append(p.checks, p.kubelet)
	}
	return p
}

// Watch asks kubelet for its resources every 10 seconds until ctx ends, so that probes need not.
// Without it a probe that finds the last answer older than that asks by itself and waits.
func (p *Prober) Watch(ctx context.Context) {
	if p.kubelet != nil {
		p.kubelet.watch(ctx)
	}
}

// Probe looks once. A full probe reads everything; a light one reads only state, phys_state and
// carrier of the selected ports, everything about a device when one of those has changed or 30
// seconds have passed, and the list of devices while a selected one is missing or stuck. It returns
// within the timeout even if reads hang. What it returns after ctx was cancelled means nothing.
func (p *Prober) Probe(ctx context.Context, full bool) *Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()

	list := full || !p.settled || p.stale(p.listedAt, false)
	result, vanished := p.look(ctx, list, full)
	if vanished {
		result, _ = p.look(ctx, true, true)
	}
	return result
}

// look is one walk over the devices. vanished says that one of them is not there any more.
func (p *Prober) look(ctx context.Context, list, full bool) (result *Result, vanished bool) {
	found := listing{entries: p.entries}
	if list {
		found = p.list(ctx)
		full = p.take(found) || full
	}
	if !found.stuck {
		for _, name := range p.candidates {
			p.start(name, full)
		}
	}
	var checked []Trouble
	for _, c := range p.checks {
		checked = append(checked, c.troubles(ctx, full)...)
	}
	sightings := make(map[string]*sighting, len(p.candidates))
	for _, name := range p.candidates {
		s := p.finish(ctx, name, found.stuck)
		sightings[name], vanished = s, vanished || s.vanished
	}
	survey := p.survey(found, sightings)
	p.settled = len(survey.missing) == 0 && !slices.ContainsFunc(survey.ports, func(port Port) bool { return port.Reason == ProbeStuck })
	result = p.result(survey, checked)
	p.troubled = result.Verdict != Healthy
	return result, vanished
}

// stale says that it is time to look again at what was read at that moment: sooner if it, or the node
// as a whole, is not healthy.
func (p *Prober) stale(read time.Time, troubled bool) bool {
	every := refreshEvery
	if troubled || p.troubled {
		every = refreshTroubleEvery
	}
	return time.Since(read) >= every
}

// listing is what the class directory holds, in the kernel's order.
type listing struct {
	entries []string
	err     error
	stuck   bool
}

// list is bounded like any other read. While it is stuck the devices are those of the last one.
func (p *Prober) list(ctx context.Context) listing {
	p.listedAt = time.Now()
	r := reader{fs: p.fs}
	found, ok := p.listing.do(ctx, func() listing {
		entries, err := r.readDirUnsorted(classDir)
		return listing{entries: entries, err: err}
	})
	if !ok {
		return listing{entries: p.entries, stuck: true}
	}
	return found
}

// take takes in a listing and returns whether it differs from the last one. A node can have hundreds
// of virtual functions, so what follows from it is not found out again at every tick.
func (p *Prober) take(found listing) bool {
	if p.names != nil && slices.Equal(found.entries, p.entries) {
		return false
	}
	p.entries = found.entries
	// The kernel has no names that are not tidy, but they would break messages.
	p.names = slices.DeleteFunc(slices.Clone(found.entries), func(name string) bool { return name != tidy(name) })
	sortNatural(p.names)
	p.candidates = p.named(p.names)
	p.forget()
	return true
}

// forget drops devices that are gone, but not those with a read in flight: should the name come
// back, that read still counts.
func (p *Prober) forget() {
	maps.DeleteFunc(p.devices, func(name string, t *target) bool {
		return !slices.Contains(p.names, name) && !t.inFlight()
	})
}

// named are the devices that may hold selected ports, going by their names.
func (p *Prober) named(names []string) []string {
	if len(p.config.Selectors) == 0 {
		return names
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !slices.ContainsFunc(p.config.Selectors, func(s Selector) bool { return s.mayMatch(name) })
	})
}

// start begins a look at a device unless the last one is stuck.
func (p *Prober) start(name string, full bool) {
	t := p.devices[name]
	if t == nil {
		t = &target{reader: reader{fs: p.fs}}
		p.devices[name] = t
	}
	last := t.last
	d := &device{reader: &t.reader, name: name, layers: p.layers}
	full = full || t.abandoned() || last == nil || last.at.IsZero() || p.stale(last.at, last.troubled())
	t.start(func() *sighting {
		if !full && d.glance(last) {
			return last
		}
		return d.look(p.config.Selectors, last, t.early.Store)
	})
}

// finish waits for the look at a device. One that does not return makes all ports of the device
// stuck, as far as they are known.
func (p *Prober) finish(ctx context.Context, name string, listingStuck bool) *sighting {
	t := p.devices[name]
	reading := "/" + classDir
	if !listingStuck {
		if s, ok := t.wait(ctx); ok {
			t.last = s
			return s
		}
		reading = t.reader.reading()
	}
	known := t.last
	if early := t.early.Load(); known == nil {
		known = early
	}
	if known == nil {
		known = (&device{name: name}).presumed(p.config.Selectors)
	}
	return known.withFinding(findingf(ProbeStuck, "reading %s did not return within %v", reading, p.config.Timeout))
}
