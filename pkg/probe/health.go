// Package probe answers one question: what is the state of this node's RDMA hardware?
//
// A Prober looks once and returns a Result. A Monitor looks again and again and turns the
// results into Health, the snapshot from which everything else decides. Results and Health
// are immutable once published: readers on any goroutine share them without locks.
package probe

import (
	"strconv"
	"time"
)

// Verdict says what one probe concluded about a port or the node.
type Verdict uint8

// Unknown is the zero value: nothing was concluded because nothing could be looked at.
const (
	Unknown Verdict = iota
	Healthy
	Unhealthy
)

func (v Verdict) String() string {
	switch v {
	case Healthy:
		return "healthy"
	case Unhealthy:
		return "unhealthy"
	default:
		return "unknown"
	}
}

// MarshalText makes a Verdict readable in JSON.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Reason names the check that failed. The set is closed: messages, metrics and tests use these
// words and no others. The empty Reason goes with Healthy.
type Reason string

// Reasons of the verdict Unhealthy.
const (
	PhysLinkDown          Reason = "PhysLinkDown"
	PortNotActive         Reason = "PortNotActive"
	NoSubnetManager       Reason = "NoSubnetManager"
	GIDMissing            Reason = "GIDMissing"
	RoCEv2GIDMissing      Reason = "RoCEv2GIDMissing"
	NetdevMissing         Reason = "NetdevMissing"
	NetdevNoCarrier       Reason = "NetdevNoCarrier"
	VerbsMissing          Reason = "VerbsMissing"
	VerbsUnusable         Reason = "VerbsUnusable"
	DeviceMissing         Reason = "DeviceMissing"
	NoDevices             Reason = "NoDevices"
	NoSubsystem           Reason = "NoSubsystem"
	RateBelowMinimum      Reason = "RateBelowMinimum"
	ModuleMissing         Reason = "ModuleMissing"
	ResourceNotAdvertised Reason = "ResourceNotAdvertised"
	CheckFailed           Reason = "CheckFailed"
	ProbeStuck            Reason = "ProbeStuck"
)

// Reasons of the verdict Unknown.
const (
	VerbsNotPermitted   Reason = "VerbsNotPermitted"
	NamespaceMismatch   Reason = "NamespaceMismatch"
	AttributeUnreadable Reason = "AttributeUnreadable"
	DriverStateFixed    Reason = "DriverStateFixed"
	CheckStale          Reason = "CheckStale"
	NotProbedYet        Reason = "NotProbedYet"
)

// Verdict is the verdict that goes with the Reason.
func (r Reason) Verdict() Verdict {
	switch r {
	case "":
		return Healthy
	case VerbsNotPermitted, NamespaceMismatch, AttributeUnreadable, DriverStateFixed, CheckStale, NotProbedYet:
		return Unknown
	default:
		return Unhealthy
	}
}

// LinkLayer is what a port speaks. The values are those of the topology label rdma-link-layer.
type LinkLayer string

// A port that says neither, as efa does, has the empty LinkLayer.
const (
	InfiniBand LinkLayer = "infiniband"
	Ethernet   LinkLayer = "ethernet"
	IWARP      LinkLayer = "iwarp"
)

// Port is one port of a selected device as one probe saw it.
type Port struct {
	Device string
	Number int
	Verdict
	Reason Reason
	// Detail holds the raw values behind the Reason ("state 1: DOWN, phys_state 2: Polling"),
	// on one line. Empty when healthy.
	Detail string

	LinkLayer LinkLayer
	// SubnetPrefix is the upper half of an InfiniBand port's GID 0 in 16 hex digits; empty
	// when unread or on another link layer.
	SubnetPrefix string
	// What the probe table prints, as the kernel gave it; empty when the layer was not read.
	State, PhysState, Rate, GID, Verbs string
	Netdevs                            []string
}

// Name is DEVICE/PORT, as in "mlx5_0/1".
func (p *Port) Name() string { return p.Device + "/" + strconv.Itoa(p.Number) }

// Trouble is one thing that keeps the node from being usable.
type Trouble struct {
	// Subject is a port ("mlx5_0/1"), or whatever a node check looked at: a selector that
	// matched nothing, a kernel module, a resource; empty when the Reason says it all.
	Subject string
	Reason  Reason
	Detail  string
}

// String is "SUBJECT Reason (detail)".
func (t Trouble) String() string {
	s := string(t.Reason)
	if t.Subject != "" {
		s = t.Subject + " " + s
	}
	if t.Detail != "" {
		s += " (" + t.Detail + ")"
	}
	return s
}

// Result is what one probe found.
type Result struct {
	Verdict
	// Reason is that of the node check that failed, or of the first port with the node's
	// verdict; empty when healthy.
	Reason Reason
	// Ports are those of the selection, devices in natural order (mlx5_2 before mlx5_10).
	Ports []Port
	// NodeTroubles come from checks that concern no single port. A selected device that is
	// missing is among them even if the requirement is met without it.
	NodeTroubles []Trouble
}

// Troubles lists node checks that failed, then every port that is not healthy, in natural order.
// Ports that fail while the requirement is met are listed too.
func (r *Result) Troubles() []Trouble {
	ts := append([]Trouble(nil), r.NodeTroubles...)
	for i := range r.Ports {
		if p := &r.Ports[i]; p.Verdict != Healthy {
			ts = append(ts, Trouble{Subject: p.Name(), Reason: p.Reason, Detail: p.Detail})
		}
	}
	return ts
}

// Override is the operator's word, read from the override file. It wins over the probe.
type Override struct {
	Open bool
	Why  string
}

// String is the line of the override file.
func (o Override) String() string {
	if o.Open {
		return "open " + o.Why
	}
	return "closed " + o.Why
}

// Health is the state of the node at one moment: the last probe's result and what follows from
// it for new mounts.
type Health struct {
	Result
	// Probed is when the probe ended.
	Probed time.Time
	// Open says whether new mounts may pass. Override, when not nil, decided it.
	Open     bool
	Override *Override
	// OverrideIgnored is why an override file that is there does not count.
	OverrideIgnored string
	// Since is when Open last changed (for a gate that has been closed from the start: when
	// the Monitor started). UTC, whole seconds.
	Since time.Time
	// Cause is why the gate is closed: the troubles of the newest probe that was not healthy,
	// each with the raw values of the first probe in a row that gave that Reason, so that the
	// text made from them does not change from probe to probe. It outlives the trouble while the
	// gate waits for RecoverThreshold. Empty while open.
	Cause []Trouble
	// UnhealthyTicks counts unhealthy ticks in a row. Unknown ticks neither advance nor reset
	// it; ticks under an Override leave it alone.
	UnhealthyTicks int
	// Decided is true from the first tick on whose verdict was healthy or unhealthy.
	Decided bool

	// Probes counts the probes so far by their verdict, ProbeTime is what they took together.
	Probes    [3]uint64
	ProbeTime time.Duration
	// Changes counts how often Open has changed.
	Changes uint64

	superseded chan struct{}
}

// Why says on one line for what the gate is as it is: the override's reason, or what it is closed for. Empty
// while the probe keeps it open.
func (h *Health) Why() string {
	if h.Override != nil {
		return "override file: " + h.Override.Why
	}
	return joinTroubles(h.Cause)
}

// Superseded is closed when a newer Health has been published.
func (h *Health) Superseded() <-chan struct{} { return h.superseded }

// Recovering says that the gate is closed although the newest probe was healthy: it waits for
// more healthy ticks in a row.
func (h *Health) Recovering() bool { return !h.Open && h.Verdict == Healthy && h.Override == nil }
