package probe

import (
	"fmt"
	"strconv"
	"strings"
)

// Ids of phys_state, state and sm_lid that the port layer knows.
const (
	physLinkUp  = 5
	stateInit   = 2
	stateActive = 4
)

// finding is what a check says of a port: a Reason and the raw values behind it. The zero value is
// nothing to complain of.
type finding struct {
	reason Reason
	detail string
}

func findingf(r Reason, format string, args ...any) finding {
	return finding{r, fmt.Sprintf(format, args...)}
}

// unreadable is the finding that an attribute could not be read or understood.
func unreadable(name string, err error) finding {
	return findingf(AttributeUnreadable, "%s unreadable: %s", name, errText(err))
}

// first is the first unhealthy finding, else the first that is unknown.
func first(findings ...finding) finding {
	var unknown finding
	for _, f := range findings {
		switch f.reason.Verdict() {
		case Unhealthy:
			return f
		case Unknown:
			if unknown.reason == "" {
				unknown = f
			}
		}
	}
	return unknown
}

// portSighting is a port with what the next look needs of this one.
type portSighting struct {
	Port
	// live is what a light look compares; empty when there is nothing to compare.
	live string
	// watched are the interfaces whose carrier is part of live.
	watched []string
	// gidIndex is where a usable GID was, -1 when there was none.
	gidIndex int
}

func (p *portSighting) set(f finding) {
	p.Reason, p.Detail = f.reason, f.detail
	p.Verdict = f.reason.Verdict()
}

// port is one port during one look at its device.
type port struct {
	*device
	number int
}

func (d *device) port(number int) port { return port{d, number} }

func (p port) dir(elem ...string) string {
	return p.path("ports", strconv.Itoa(p.number), strings.Join(elem, "/"))
}

func (p port) portAttr(elem ...string) attr { return p.attr(p.dir(elem...)) }

// look reads the port layer by layer. Every layer is read even if an earlier one failed: what maps
// to a port is of interest most when the port is down.
func (p port) look(gidHint int, verbs verbsSighting) portSighting {
	s := portSighting{Port: Port{Device: p.name, Number: p.number}, gidIndex: -1}
	state, phys := p.portAttr("state"), p.portAttr("phys_state")
	link := p.linkLayer()
	rate := p.portAttr("rate")
	s.State, s.PhysState, s.Rate = tidy(state.text), tidy(phys.text), tidy(rate.text)
	s.LinkLayer = link.layer
	if link.layer == InfiniBand {
		s.SubnetPrefix = p.subnetPrefix()
	}
	stateID, stateErr := parseID(state)
	physID, physErr := parseID(phys)
	link.active = stateErr == nil && stateID == stateActive && (physErr != nil || physID == physLinkUp)

	var findings []finding
	add := func(f finding) { findings = append(findings, f) }
	if p.layers.Port {
		add(p.checkPort(state, phys, link))
	}
	if p.layers.GID {
		g := p.checkGID(link, gidHint)
		s.gidIndex, s.GID = g.index, g.text
		add(g.finding)
	}
	var n netdevSighting
	if p.layers.Netdev {
		n = p.checkNetdev(link, s.gidIndex)
		s.Netdevs, s.watched = n.names, n.watched
		add(n.finding)
	}
	if p.layers.Verbs {
		s.Verbs = verbs.entry
		add(verbs.finding)
	}
	if p.layers.minRateGbps > 0 && link.active {
		add(checkRate(rate, p.layers.minRateGbps))
	}
	s.set(first(findings...))
	s.live = fingerprint(state, phys, n.carriers)
	return s
}

// live reads again what fingerprint was made from.
func (p port) live(watched []string) string {
	state, phys := p.portAttr("state"), p.portAttr("phys_state")
	carriers := make([]carrier, len(watched))
	for i, name := range watched {
		carriers[i] = p.carrier(name)
	}
	return fingerprint(state, phys, carriers)
}

func fingerprint(state, phys attr, carriers []carrier) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n%v", state, phys)
	for _, c := range carriers {
		fmt.Fprintf(&b, "\n%s %v", c.text, c.up)
	}
	return b.String()
}

// checkPort wants the link trained and the port active. What is certain counts even if the other
// attribute cannot be read.
func (p port) checkPort(state, phys attr, link link) finding {
	physID, physErr := parseID(phys)
	stateID, stateErr := parseID(state)
	raw := fmt.Sprintf("state %v, phys_state %v", state, phys)
	switch {
	case physErr == nil && physID != physLinkUp:
		return finding{PhysLinkDown, raw}
	case stateErr == nil && stateID != stateActive:
		if f := p.checkSubnetManager(stateID, physErr, link, raw); f.reason != "" {
			return f
		}
		return finding{PortNotActive, raw}
	case physErr != nil:
		return unreadable("phys_state", physErr)
	case stateErr != nil:
		return unreadable("state", stateErr)
	}
	return finding{}
}

// checkSubnetManager explains a trained InfiniBand port that waits in INIT.
func (p port) checkSubnetManager(stateID int, physErr error, link link, raw string) finding {
	if link.layer != InfiniBand || stateID != stateInit || physErr != nil {
		return finding{}
	}
	smLID := p.portAttr("sm_lid")
	if lid, err := strconv.ParseUint(smLID.text, 0, 32); smLID.err != nil || err != nil || lid != 0 {
		return finding{}
	}
	return findingf(NoSubnetManager, "%s, sm_lid %v", raw, smLID)
}

// link is what the rules of the layers depend on.
type link struct {
	layer  LinkLayer
	err    error // why the layer is not known
	active bool
}

// ethernet says that a port needs an interface with carrier.
func (l link) ethernet() bool { return l.layer == Ethernet || l.layer == IWARP }

// roce says that a port needs a GID of type RoCE v2.
func (l link) roce() bool { return l.layer == Ethernet }

// linkLayer belongs to the port: one device can speak InfiniBand on one and Ethernet on another.
func (p port) linkLayer() link {
	a := p.portAttr("link_layer")
	switch {
	case a.err != nil:
		return link{err: a.err}
	case a.text == "InfiniBand":
		return link{layer: InfiniBand}
	case a.text == "Ethernet" && p.isRNIC():
		return link{layer: IWARP}
	case a.text == "Ethernet":
		return link{layer: Ethernet}
	}
	return link{}
}
