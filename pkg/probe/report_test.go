package probe

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestJSON(t *testing.T) {
	for want, r := range map[string]Result{
		`{"verdict":"unhealthy","reason":"PhysLinkDown","message":"mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling)",` +
			`"ports":[{"device":"mlx5_0","port":1,"verdict":"unhealthy","reason":"PhysLinkDown","message":"state 1: DOWN, phys_state 2: Polling"}]}`: down,
		`{"verdict":"healthy","reason":"","message":"","ports":[{"device":"mlx5_0","port":1,"verdict":"healthy","reason":"","message":""}]}`: healthy,
		`{"verdict":"unhealthy","reason":"NoSubsystem","message":"NoSubsystem (x); a ModuleMissing","ports":[]}`: {
			Verdict: Unhealthy, Reason: NoSubsystem,
			NodeTroubles: []Trouble{{Reason: NoSubsystem, Detail: "x"}, {Subject: "a", Reason: ModuleMissing}},
		},
	} {
		for _, v := range []any{r, &r} {
			if got, err := json.Marshal(v); err != nil || string(got) != want {
				t.Errorf("got  %s %v\nwant %s", got, err, want)
			}
		}
	}
}

func TestTable(t *testing.T) {
	tr := newTree(t, roce)
	tr.set("sys/class/net/ens1f1/carrier", "0")
	r := newProber(Config{Selectors: selectors(t, "mlx5_0", "mlx5_1", "mlx5_2")}, tr).Probe(t.Context(), true)
	var b strings.Builder
	if err := r.WriteTable(&b, nil); err != nil {
		t.Fatal(err)
	}
	const want = `
DEVICE  PORT  LINK LAYER  NETDEV  STATE          RATE                 GID                                      VERBS    VERDICT
mlx5_0  1     ethernet    ens1f0  ACTIVE/LinkUp  100 Gb/sec (4X EDR)  fe80:0000:0000:0000:0202:c9ff:feaa:b000  uverbs0  healthy
mlx5_1  1     ethernet    ens1f1  ACTIVE/LinkUp  100 Gb/sec (4X EDR)  fe80:0000:0000:0000:0202:c9ff:feaa:b001  uverbs1  unhealthy NetdevNoCarrier
node: healthy
mlx5_2 DeviceMissing (no such device; devices here: mlx5_0, mlx5_1). Look at the kernel log and ` + "`lspci`" + ` for the card, and at the selection for renamed devices; an interface is selected by netdev:NAME.
mlx5_1/1 NetdevNoCarrier (ens1f1 carrier 0). Look at the interface with ` + "`ip link`" + `, then at its cable and switch port.
`
	if got := "\n" + b.String(); got != want {
		t.Errorf("got %s", got)
	}
}

func TestEveryReasonHasAdvice(t *testing.T) {
	fallback := AttributeUnreadable.Advice()
	for _, r := range []Reason{
		PhysLinkDown, PortNotActive, NoSubnetManager, GIDMissing, RoCEv2GIDMissing, NetdevMissing, NetdevNoCarrier,
		VerbsMissing, VerbsUnusable, DeviceMissing, NoDevices, NoSubsystem, RateBelowMinimum, ModuleMissing,
		ResourceNotAdvertised, CheckFailed, ProbeStuck, VerbsNotPermitted, NamespaceMismatch, DriverStateFixed,
		CheckStale, NotProbedYet,
	} {
		if r.Advice() == fallback {
			t.Errorf("%s has no advice of its own", r)
		}
	}
}
