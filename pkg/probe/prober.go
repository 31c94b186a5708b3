package probe

import (
	"context"
	"fmt"
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
}

// refreshEvery is how often everything is read, whether or not a light probe saw a change.
const refreshEvery = 30 * time.Second

// Prober looks at the hardware. It is safe for concurrent use, but does one probe at a time.
type Prober struct {
	config Config
	fs     fsys
	layers layers
	checks []nodeCheck

	mu      sync.Mutex // held during a probe
	listing call[listing]
	names   []string // of the last listing
	devices map[string]*target
	seen    bool // a selected port, ever
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
	if c.Root == "" {
		c.Root = "/"
	}
	return newProber(c, rootFS(c.Root))
}

func newProber(c Config, fs fsys) *Prober {
	if c.Timeout <= 0 {
		c.Timeout = 3 * time.Second
	}
	p := &Prober{
		config:  c,
		fs:      fs,
		layers:  layers{Checks: c.Checks.orDefault(), minRateGbps: c.MinRateGbps},
		devices: make(map[string]*target),
	}
	if len(c.Modules) > 0 {
		p.checks = append(p.checks, &moduleCheck{reader: reader{fs: fs}, modules: c.Modules})
	}
	if c.HealthFile != "" {
		p.checks = append(p.checks, newHealthFile(c.HealthFile, c.HealthFileMaxAge))
	}
	return p
}

// Probe looks once. A full probe reads everything; a light one lists the devices and reads only
// state, phys_state and carrier of the selected ports, and everything about a device when one of
// those has changed or refreshEvery has passed. It returns within the timeout even if reads hang.
// What it returns after ctx was cancelled means nothing.
func (p *Prober) Probe(ctx context.Context, full bool) *Result {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.config.Timeout)
	defer cancel()

	found := p.list(ctx)
	if !slices.Equal(found.names, p.names) {
		full = true
	}
	p.forget(found)
	candidates := p.candidates(p.names)
	if !found.stuck {
		for _, name := range candidates {
			p.start(name, full)
		}
	}
	var checked []Trouble
	for _, c := range p.checks {
		checked = append(checked, c.troubles(ctx, full)...)
	}
	sightings := make(map[string]*sighting)
	for _, name := range candidates {
		sightings[name] = p.finish(ctx, name, found.stuck)
	}
	return p.result(p.survey(found, candidates, sightings), checked)
}

// listing is what the class directory holds.
type listing struct {
	names []string
	err   error
	stuck bool
}

// list is bounded like any other read. While it is stuck the devices are those of the last one.
func (p *Prober) list(ctx context.Context) listing {
	r := reader{fs: p.fs}
	found, ok := p.listing.do(ctx, func() listing {
		names, err := r.readDir(classDir)
		return listing{names: names, err: err}
	})
	if !ok {
		return listing{names: p.names, stuck: true}
	}
	return found
}

// forget drops devices that are gone, but not those with a read in flight: should the name come
// back, that read still counts.
func (p *Prober) forget(found listing) {
	p.names = found.names
	maps.DeleteFunc(p.devices, func(name string, t *target) bool {
		return !slices.Contains(found.names, name) && !t.stuck()
	})
}

// candidates are the devices that may hold selected ports, going by their names.
func (p *Prober) candidates(names []string) []string {
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
	full = full || t.stuck() || last == nil || last.at.IsZero() || time.Since(last.at) >= refreshEvery
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

// survey is what a probe found, port by port.
type survey struct {
	ports []Port
	// missing is what keeps the selection from being complete.
	missing []Trouble
}

func (p *Prober) survey(found listing, candidates []string, sightings map[string]*sighting) survey {
	var s survey
	for _, name := range candidates {
		for _, port := range sightings[name].ports {
			s.ports = append(s.ports, port.Port)
		}
	}
	p.seen = p.seen || len(s.ports) > 0
	switch {
	case found.stuck:
		s.missing = []Trouble{{Subject: "/" + classDir, Reason: ProbeStuck, Detail: fmt.Sprintf("listing did not return within %v", p.config.Timeout)}}
	case isAbsent(found.err):
		s.missing = []Trouble{{Reason: NoSubsystem, Detail: p.noSubsystem()}}
	case found.err != nil:
		s.missing = []Trouble{{Subject: "/" + classDir, Reason: AttributeUnreadable, Detail: errText(found.err)}}
	case len(found.names) == 0:
		s.missing = []Trouble{{Reason: NoDevices, Detail: "/" + classDir + " is empty: no driver has registered a device"}}
	case len(p.config.Selectors) == 0:
		if len(s.ports) == 0 {
			s.missing = []Trouble{{Reason: NoDevices, Detail: nothingLeft(candidates, sightings)}}
		}
	default:
		s.missing = p.missing(found.names, sightings)
	}
	if need := p.config.Require.count(len(s.ports)); len(s.missing) == 0 && len(s.ports) < need {
		s.missing = []Trouble{p.config.Require.tooFew(len(s.ports))}
	}
	return s
}

func (p *Prober) noSubsystem() string {
	detail := "/" + classDir + " does not exist: ib_core is not loaded"
	if p.config.Root != "/" {
		detail += ", or the host's /sys is not at " + tidy(p.config.Root) + "/sys"
	}
	return detail
}

func nothingLeft(names []string, sightings map[string]*sighting) string {
	var skipped []string
	for _, name := range names {
		skipped = append(skipped, name+": "+sightings[name].skipped)
	}
	return "only devices that count when selected: " + shortList(skipped)
}

// missing is the trouble with each selector that named no port of any device.
func (p *Prober) missing(names []string, sightings map[string]*sighting) []Trouble {
	var troubles []Trouble
	for i, sel := range p.config.Selectors {
		matched := false
		for _, s := range sightings {
			matched = matched || s.matched[i]
		}
		if !matched {
			troubles = append(troubles, sel.missing(names))
		}
	}
	return troubles
}

// result puts the survey and the node checks together.
func (p *Prober) result(s survey, checked []Trouble) *Result {
	reason := p.config.Require.judge(s.ports, s.missing)
	if p.config.AbsentOpen && !p.seen && absent(reason) {
		reason, s.missing = "", nil
	}
	for _, t := range checked {
		reason = worse(reason, t.Reason)
	}
	return &Result{
		Verdict:      reason.Verdict(),
		Reason:       reason,
		Ports:        s.ports,
		NodeTroubles: append(s.missing, checked...),
	}
}

func absent(r Reason) bool { return r == NoSubsystem || r == NoDevices || r == DeviceMissing }

// worse is b if its verdict is worse than that of a: unhealthy, then unknown, then healthy.
func worse(a, b Reason) Reason {
	rank := [...]int{Healthy: 0, Unknown: 1, Unhealthy: 2}
	if rank[b.Verdict()] > rank[a.Verdict()] {
		return b
	}
	return a
}

func anyOf(seq func(func(string) bool), want func(string) bool) bool {
	for s := range seq {
		if want(s) {
			return true
		}
	}
	return false
}

func sortedUnique(numbers []int) []int {
	slices.Sort(numbers)
	return slices.Compact(numbers)
}
