package probe

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// stateLog writes a line for each change of state and none for a probe that changed nothing. Each line says what has changed
// since when, and why. Only the Monitor's goroutine uses it.
type stateLog struct {
	node        string
	noSelection bool
	started     bool
	// began is when the trouble of a subject that is in trouble now was first seen.
	began map[string]time.Time
}

// usable is why the gate is open while no override says otherwise.
const usable = "RDMA is usable"

func (l *stateLog) changed(old, h *Health) {
	first := !l.started
	l.started = true
	if first {
		l.start(h)
	}
	l.troubles(old, h)
	l.override(old, h)
	l.gate(old, h, first)
}

func (l *stateLog) gate(old, h *Health, first bool) {
	what, before := "Gate closed", "open"
	if h.Open {
		what, before = "Gate opened", "closed"
	}
	args := []any{"node", l.node, "verdict", h.Verdict.String(), "why", cmp.Or(h.Why(), usable)}
	switch {
	case first: // whatever it was before, it was nobody's gate
		klog.InfoS(what, args...)
	case h.Open != old.Open:
		klog.InfoS(what, append(args, before+"Since", utc(old.Since), before+"For", lasted(old.Since, h.Since))...)
	}
}

func (l *stateLog) start(h *Health) {
	var ports []string
	for i := range h.Ports {
		ports = append(ports, h.Ports[i].Name())
	}
	klog.InfoS("First look at RDMA ports", "node", l.node, "verdict", h.Verdict.String(), "ports", strings.Join(ports, " "))
	if l.noSelection {
		klog.InfoS("No device is selected, so every one counts that is not a virtual function; name those that carry storage with --rdma-device")
	}
}

// troubles writes a line for each port, and each other subject, whose Reason changed.
func (l *stateLog) troubles(old, h *Health) {
	was, is := bySubject(old), bySubject(h)
	for _, subject := range slices.SortedFunc(maps.Keys(is), compareNatural) {
		t, before := is[subject], was[subject]
		switch {
		case before.Reason == "":
			l.began[subject] = h.Probed
			klog.InfoS("RDMA trouble", "node", l.node, "subject", subject, "reason", string(t.Reason), "detail", t.Detail)
		case before.Reason != t.Reason:
			klog.InfoS("RDMA trouble", "node", l.node, "subject", subject, "reason", string(t.Reason), "detail", t.Detail,
				"was", string(before.Reason), "since", utc(l.began[subject]))
		}
	}
	for _, subject := range slices.SortedFunc(maps.Keys(was), compareNatural) {
		if _, lasting := is[subject]; !lasting {
			klog.InfoS("RDMA trouble is over", "node", l.node, "subject", subject, "was", string(was[subject].Reason),
				"since", utc(l.began[subject]), "lasted", lasted(l.began[subject], h.Probed))
			delete(l.began, subject)
		}
	}
}

func (l *stateLog) override(old, h *Health) {
	switch {
	case h.Override != nil && (old.Override == nil || *old.Override != *h.Override):
		klog.InfoS("Override in force", "node", l.node, "open", h.Override.Open, "why", h.Override.Why)
	case h.Override == nil && old.Override != nil:
		klog.InfoS("Override lifted", "node", l.node, "was", old.Override.String(), "open", h.Open, "why", cmp.Or(h.Why(), usable))
	}
}

func bySubject(h *Health) map[string]Trouble {
	m := make(map[string]Trouble)
	for _, t := range h.Troubles() {
		if t.Reason == NotProbedYet {
			continue
		}
		subject := cmp.Or(t.Subject, "node")
		if _, dup := m[subject]; !dup {
			m[subject] = t
		}
	}
	return m
}

func joinTroubles(troubles []Trouble) string {
	texts := make([]string, len(troubles))
	for i, t := range troubles {
		texts[i] = t.String()
	}
	return strings.Join(texts, "; ")
}

// utc is a time as it stands in every message.
func utc(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// lasted is text because loggers do not agree on how to write a duration.
func lasted(from, to time.Time) string { return to.Sub(from).Round(time.Second).String() }
