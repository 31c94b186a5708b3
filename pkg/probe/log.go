package probe

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"
)

// stateLog writes a line for each change of state and none for a probe that changed nothing.
type stateLog struct {
	noSelection bool
	started     bool
}

func (l *stateLog) changed(old, h *Health) {
	if !l.started {
		l.started = true
		l.start(h)
	}
	logTroubles(old, h)
	if h.Override != nil && (old.Override == nil || *old.Override != *h.Override) {
		klog.InfoS("Override in force", "open", h.Override.Open, "why", h.Override.Why)
	}
	if h.Override == nil && old.Override != nil {
		klog.InfoS("Override lifted")
	}
	if h.Open && !old.Open {
		klog.InfoS("Gate opened", "verdict", h.Verdict.String())
	}
	if !h.Open && old.Open {
		klog.InfoS("Gate closed", "verdict", h.Verdict.String(), "troubles", joinTroubles(h.Troubles()))
	}
}

func (l *stateLog) start(h *Health) {
	var ports []string
	for i := range h.Ports {
		ports = append(ports, h.Ports[i].Name())
	}
	klog.InfoS("First look at RDMA ports", "verdict", h.Verdict.String(), "ports", strings.Join(ports, " "))
	if l.noSelection {
		klog.InfoS("No device is selected, so every one counts that is not a virtual function; name those that carry storage with --rdma-device")
	}
}

// logTroubles writes a line for each port, and each other subject, whose Reason changed.
func logTroubles(old, h *Health) {
	was, is := bySubject(old), bySubject(h)
	for _, subject := range slices.SortedFunc(maps.Keys(is), compareNatural) {
		t := is[subject]
		if before := was[subject]; before.Reason != t.Reason {
			klog.InfoS("RDMA trouble", "subject", subject, "was", string(before.Reason), "reason", string(t.Reason), "detail", t.Detail)
		}
	}
	for _, subject := range slices.SortedFunc(maps.Keys(was), compareNatural) {
		if _, lasting := is[subject]; !lasting {
			klog.InfoS("RDMA trouble is over", "subject", subject, "was", string(was[subject].Reason))
		}
	}
}

func bySubject(h *Health) map[string]Trouble {
	m := make(map[string]Trouble)
	for _, t := range h.Troubles() {
		if t.Reason == NotProbedYet {
			continue
		}
		subject := t.Subject
		if subject == "" {
			subject = "node"
		}
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
