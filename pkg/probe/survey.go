package probe

import (
	"fmt"
	"slices"
)

// survey is what a probe found: ports in natural order, and what keeps the selection from being
// complete.
type survey struct {
	ports   []Port
	missing []Trouble
}

func (p *Prober) survey(found listing, sightings map[string]*sighting) survey {
	var s survey
	for _, name := range p.candidates {
		for _, port := range sightings[name].ports {
			s.ports = append(s.ports, port.Port)
		}
	}
	p.seen = p.seen || len(s.ports) > 0
	s.missing = p.listingTroubles(found)
	if s.missing == nil {
		s.missing = p.selectionTroubles(p.names, sightings, len(s.ports))
	}
	return s
}

// listingTroubles are those of the class directory, beside which no selector matters.
func (p *Prober) listingTroubles(found listing) []Trouble {
	const subject = "/" + classDir
	switch {
	case found.stuck:
		return []Trouble{{subject, ProbeStuck, fmt.Sprintf("listing did not return within %v", p.config.Timeout)}}
	case isAbsent(found.err):
		return []Trouble{{"", NoSubsystem, p.noSubsystem()}}
	case found.err != nil:
		return []Trouble{{subject, AttributeUnreadable, errText(found.err)}}
	case len(p.names) == 0:
		return []Trouble{{"", NoDevices, subject + " is empty: no driver has registered a device"}}
	}
	return nil
}

func (p *Prober) noSubsystem() string {
	detail := "/" + classDir + " does not exist: ib_core is not loaded"
	if p.config.Root != "/" {
		detail += ", or the host's /sys is not at " + tidy(p.config.Root) + "/sys"
	}
	return detail
}

// selectionTroubles are selectors that named no port of any device, or too few ports altogether.
func (p *Prober) selectionTroubles(names []string, sightings map[string]*sighting, ports int) []Trouble {
	if len(p.config.Selectors) == 0 && ports == 0 {
		return []Trouble{{"", NoDevices, nothingLeft(names, sightings)}}
	}
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
	if need := p.config.Require.count(ports); troubles == nil && ports < need {
		detail := fmt.Sprintf("%d ports are required, only %d selected", need, ports)
		return []Trouble{{"", DeviceMissing, detail}}
	}
	return troubles
}

func nothingLeft(names []string, sightings map[string]*sighting) string {
	var skipped []string
	for _, name := range names {
		skipped = append(skipped, name+": "+sightings[name].skipped)
	}
	return "only devices that count when selected: " + shortList(skipped)
}

// result puts the survey and the node checks together.
func (p *Prober) result(s survey, checked []Trouble) *Result {
	reason := p.config.Require.judge(s.ports, s.missing)
	if p.config.AbsentOpen && !p.seen && absent(reason) {
		reason, s.missing = "", nil
	}
	if reason == "" && len(s.missing) == 0 && allHealthy(s.ports) {
		exonerate(checked)
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

// allHealthy wants at least one port.
func allHealthy(ports []Port) bool {
	return len(ports) > 0 && !slices.ContainsFunc(ports, func(p Port) bool { return p.Verdict != Healthy })
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
