package registration

import (
	"testing"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

func TestRegistered(t *testing.T) {
	for name, tc := range map[string]struct {
		s    situation
		want bool
	}{
		"no trouble":                   {situation{policy: Drained}, true},
		"no trouble, always":           {situation{policy: Always}, true},
		"trouble, drained":             {situation{policy: Drained, sustained: true}, false},
		"trouble, not drained":         {situation{policy: Drained, sustained: true, volumes: 1}, true},
		"trouble, always":              {situation{policy: Always, sustained: true}, false},
		"trouble, always, not drained": {situation{policy: Always, sustained: true, volumes: 1}, false},
		"trouble, never":               {situation{policy: Never, sustained: true}, true},
		"trouble, observe":             {situation{policy: Always, sustained: true, observe: true}, true},
	} {
		if got := tc.s.registered(); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestSustain(t *testing.T) {
	const threshold = 3
	unhealthy := func(ticks int) probe.Health {
		return probe.Health{Result: probe.Result{Verdict: probe.Unhealthy}, UnhealthyTicks: ticks, Decided: true}
	}
	overridden := func(h probe.Health, open bool) probe.Health {
		h.Open, h.Override = open, &probe.Override{Open: open}
		return h
	}
	for name, tc := range map[string]struct {
		sustained, first bool
		h                probe.Health
		want             bool
	}{
		"below the threshold":                   {false, false, unhealthy(2), false},
		"at the threshold":                      {false, false, unhealthy(3), true},
		"the first verdict decides":             {false, true, unhealthy(1), true},
		"nothing is known yet":                  {false, true, probe.Health{}, false},
		"the gate opens":                        {true, false, probe.Health{Open: true, Decided: true}, false},
		"healthy, but the gate is not open yet": {true, false, probe.Health{Result: probe.Result{Verdict: probe.Healthy}, Decided: true}, true},
		"unknown after trouble":                 {true, false, probe.Health{Decided: true}, true},
		"closed by override":                    {false, false, overridden(unhealthy(9), false), false},
		"closed by override at the start":       {false, true, overridden(unhealthy(1), false), false},
		"opened by override":                    {true, false, overridden(unhealthy(9), true), false},
	} {
		if got := sustain(tc.sustained, tc.first, &tc.h, threshold); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestParsePolicy(t *testing.T) {
	for _, p := range []Policy{Drained, Always, Never} {
		if got, err := ParsePolicy(string(p)); got != p || err != nil {
			t.Errorf("ParsePolicy(%q) = %q, %v", p, got, err)
		}
	}
	if _, err := ParsePolicy("sometimes"); err == nil || err.Error() != `"sometimes" is no policy; write drained, always or never` {
		t.Errorf("%v", err)
	}
}
