package probe

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// roce is a node with two RoCE devices, each in good order on all layers.
const roce = `
-- sys/class/infiniband/mlx5_0/node_type --
1: CA
-- sys/class/infiniband/mlx5_0/ports/1/link_layer --
Ethernet
-- sys/class/infiniband/mlx5_0/ports/1/state --
4: ACTIVE
-- sys/class/infiniband/mlx5_0/ports/1/phys_state --
5: LinkUp
-- sys/class/infiniband/mlx5_0/ports/1/rate --
100 Gb/sec (4X EDR)
-- sys/class/infiniband/mlx5_0/ports/1/counters/link_downed --
0
-- sys/class/infiniband/mlx5_0/ports/1/gids/0 --
fe80:0000:0000:0000:0202:c9ff:feaa:b000
-- sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0 --
RoCE v2
-- sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0 --
ens1f0
-- sys/class/infiniband/mlx5_1/node_type --
1: CA
-- sys/class/infiniband/mlx5_1/ports/1/link_layer --
Ethernet
-- sys/class/infiniband/mlx5_1/ports/1/state --
4: ACTIVE
-- sys/class/infiniband/mlx5_1/ports/1/phys_state --
5: LinkUp
-- sys/class/infiniband/mlx5_1/ports/1/rate --
100 Gb/sec (4X EDR)
-- sys/class/infiniband/mlx5_1/ports/1/counters/link_downed --
0
-- sys/class/infiniband/mlx5_1/ports/1/gids/0 --
fe80:0000:0000:0000:0202:c9ff:feaa:b001
-- sys/class/infiniband/mlx5_1/ports/1/gid_attrs/types/0 --
RoCE v2
-- sys/class/infiniband/mlx5_1/ports/1/gid_attrs/ndevs/0 --
ens1f1
-- sys/class/net/ens1f0/carrier --
1
-- sys/class/net/ens1f1/carrier --
1
-- sys/class/infiniband_verbs/uverbs0/ibdev --
mlx5_0
-- sys/class/infiniband_verbs/uverbs0/dev --
231:192
-- sys/class/infiniband_verbs/uverbs1/ibdev --
mlx5_1
-- sys/class/infiniband_verbs/uverbs1/dev --
231:193
-- dev/infiniband/uverbs0 --
!CHR 231:192
-- dev/infiniband/uverbs1 --
!CHR 231:193
`

const (
	state0 = "sys/class/infiniband/mlx5_0/ports/1/state"
	state1 = "sys/class/infiniband/mlx5_1/ports/1/state"
)

func selectors(t testing.TB, values ...string) []Selector {
	t.Helper()
	s, err := ParseSelectors(values)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// summary is a result in one line: the node, then each port.
func summary(r *Result) string {
	words := []string{verdictText(r.Verdict, r.Reason)}
	for i := range r.Ports {
		words = append(words, r.Ports[i].Name()+" "+verdictText(r.Ports[i].Verdict, r.Ports[i].Reason))
	}
	return strings.Join(words, ", ")
}

func want(t *testing.T, r *Result, summed string) {
	t.Helper()
	if got := summary(r); got != summed {
		t.Errorf("got  %s\nwant %s\ntroubles %v", got, summed, r.Troubles())
	}
}

func TestFullProbeFillsTheTable(t *testing.T) {
	r := newProber(Config{}, newTree(t, roce)).Probe(t.Context(), true)
	want(t, r, "healthy, mlx5_0/1 healthy, mlx5_1/1 healthy")
	p := r.Ports[0]
	if p.LinkLayer != Ethernet || p.State != "4: ACTIVE" || p.PhysState != "5: LinkUp" || p.Rate != "100 Gb/sec (4X EDR)" ||
		p.GID != "fe80:0000:0000:0000:0202:c9ff:feaa:b000" || p.Verbs != "uverbs0" || !slices.Equal(p.Netdevs, []string{"ens1f0"}) {
		t.Errorf("%+v", p)
	}
}

func TestLightProbeReadsStateAndCarrierOnly(t *testing.T) {
	tr := newTree(t, roce)
	p := newProber(Config{Selectors: selectors(t, "mlx5_0")}, tr)
	p.Probe(t.Context(), true)
	tr.reset()
	for range 3 {
		p.Probe(t.Context(), false)
		want := []string{
			"read sys/class/infiniband/mlx5_0/ports/1/state",
			"read sys/class/infiniband/mlx5_0/ports/1/phys_state",
			"read sys/class/net/ens1f0/carrier",
		}
		if got := tr.reset(); !slices.Equal(got, want) {
			t.Errorf("asked for %q", got)
		}
	}
}

func TestLightProbeListsDevicesWhileOneIsMissing(t *testing.T) {
	tr := newTree(t, roce)
	p := newProber(Config{Selectors: selectors(t, "mlx5_0", "mlx5_7"), Require: Require{all: true}}, tr)
	p.Probe(t.Context(), true)
	for range 2 {
		tr.reset()
		p.Probe(t.Context(), false)
		if got := tr.reset(); !slices.Contains(got, "list sys/class/infiniband") {
			t.Errorf("asked for %q", got)
		}
	}
}

func TestLightProbeMissesADeviceThatVanishes(t *testing.T) {
	tr := newTree(t, roce)
	p := newProber(Config{Selectors: selectors(t, "mlx5_*")}, tr)
	p.Probe(t.Context(), true)
	tr.remove("sys/class/infiniband/mlx5_0")
	tr.remove("sys/class/infiniband/mlx5_1")
	want(t, p.Probe(t.Context(), false), "unhealthy NoDevices")
}

// A long table costs a second on some devices, and what is down is down whatever else maps to it.
func TestAPortThatIsDownHasItsGIDTableSpared(t *testing.T) {
	tr := newTree(t, roce)
	for i := range 64 {
		tr.set(fmt.Sprintf("sys/class/infiniband/mlx5_0/ports/1/gids/%d", i+1), "0000:0000:0000:0000:0000:0000:0000:0000")
	}
	p := newProber(Config{Selectors: selectors(t, "mlx5_0")}, tr)
	p.Probe(t.Context(), true)
	for _, c := range []struct {
		state, phys, want string
		most              int
	}{
		{"1: DOWN", "3: Disabled", "unhealthy PhysLinkDown, mlx5_0/1 unhealthy PhysLinkDown", 2},
		{"4: ACTIVE", "5: LinkUp", "unhealthy NetdevNoCarrier, mlx5_0/1 unhealthy NetdevNoCarrier", 200},
	} {
		tr.set("sys/class/infiniband/mlx5_0/ports/1/state", c.state)
		tr.set("sys/class/infiniband/mlx5_0/ports/1/phys_state", c.phys)
		tr.set("sys/class/net/ens1f0/carrier", "!EINVAL")
		tr.reset()
		want(t, p.Probe(t.Context(), true), c.want)
		gids := 0
		for _, read := range tr.reset() {
			if strings.Contains(read, "/gids/") {
				gids++
			}
		}
		if gids == 0 || gids > c.most {
			t.Errorf("%s: %d GIDs read, want %d at most", c.state, gids, c.most)
		}
	}
}

// What only a full look can see is seen again within seconds once it has been mended.
func TestTroubleIsLookedAtMoreOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		const node = "dev/infiniband/uverbs0"
		good := tr.files[node]
		p := newProber(Config{Selectors: selectors(t, "mlx5_0")}, tr)
		tr.remove(node)
		want(t, p.Probe(t.Context(), true), "unhealthy VerbsMissing, mlx5_0/1 unhealthy VerbsMissing")
		tr.set(node, good)
		time.Sleep(refreshTroubleEvery - time.Second)
		want(t, p.Probe(t.Context(), false), "unhealthy VerbsMissing, mlx5_0/1 unhealthy VerbsMissing")
		time.Sleep(time.Second)
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy")
	})
}

func TestASelectorThatMatchesNothingIsTriedMoreOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		p := newProber(Config{Selectors: selectors(t, "link-layer:infiniband")}, tr)
		p.Probe(t.Context(), true)
		tr.set("sys/class/infiniband/mlx5_0/ports/1/link_layer", "InfiniBand")
		time.Sleep(refreshTroubleEvery)
		if r := p.Probe(t.Context(), false); len(r.Ports) != 1 {
			t.Errorf("%s", summary(r))
		}
	})
}

func TestFirstProbeIsFullWhateverWasAskedFor(t *testing.T) {
	want(t, newProber(Config{}, newTree(t, roce)).Probe(t.Context(), false), "healthy, mlx5_0/1 healthy, mlx5_1/1 healthy")
}

func TestChangeMakesThatDeviceBeReadInFull(t *testing.T) {
	for name, change := range map[string][2]string{
		"state":      {state0, "3: ARMED"},
		"phys_state": {"sys/class/infiniband/mlx5_0/ports/1/phys_state", "6: LinkErrorRecovery"},
		"carrier":    {"sys/class/net/ens1f0/carrier", "0"},
		"unreadable": {state0, "!EIO"},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t, roce)
			p := newProber(Config{}, tr)
			p.Probe(t.Context(), true)
			tr.reset()
			tr.set(change[0], change[1])
			if r := p.Probe(t.Context(), false); r.Ports[0].Verdict == Healthy || r.Ports[1].Verdict != Healthy {
				t.Error(summary(r))
			}
			asked := tr.reset()
			if !slices.Contains(asked, "read sys/class/infiniband/mlx5_0/ports/1/link_layer") {
				t.Error("mlx5_0 was not read in full")
			}
			if slices.Contains(asked, "read sys/class/infiniband/mlx5_1/ports/1/link_layer") {
				t.Error("mlx5_1 was read in full")
			}
		})
	}
}

func TestEverythingIsReadAgainAfterThirtySeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		p := newProber(Config{Selectors: selectors(t, "mlx5_0")}, tr)
		p.Probe(t.Context(), true)
		tr.set("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "IB/RoCE v1")
		time.Sleep(refreshEvery - time.Second)
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy")
		time.Sleep(time.Second)
		want(t, p.Probe(t.Context(), false), "unhealthy RoCEv2GIDMissing, mlx5_0/1 unhealthy RoCEv2GIDMissing")
		tr.set("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2")
		want(t, p.Probe(t.Context(), true), "healthy, mlx5_0/1 healthy")
	})
}

func TestIndexOfUsableGIDIsRemembered(t *testing.T) {
	c := loadCase(t, "testdata/cases/s11-gid-256-only-index-200.txtar")
	tr := treeOf(t, c.files)
	p := newProber(c.config, tr)
	p.Probe(t.Context(), true)
	tr.reset()
	p.Probe(t.Context(), true)
	for _, asked := range tr.reset() {
		if strings.Contains(asked, "/gid") && path.Base(asked) != "200" {
			t.Errorf("asked again: %s", asked)
		}
	}
}

func TestMovedGIDIsFound(t *testing.T) {
	tr := newTree(t, roce)
	p := newProber(Config{Selectors: selectors(t, "mlx5_0")}, tr)
	p.Probe(t.Context(), true)
	const dir = "sys/class/infiniband/mlx5_0/ports/1/"
	tr.set(dir+"gids/0", "0000:0000:0000:0000:0000:0000:0000:0000")
	tr.set(dir+"gids/1", "fe80:0000:0000:0000:0202:c9ff:feaa:b001")
	tr.set(dir+"gid_attrs/types/1", "RoCE v2")
	tr.set(dir+"gid_attrs/ndevs/1", "ens1f0")
	r := p.Probe(t.Context(), true)
	want(t, r, "healthy, mlx5_0/1 healthy")
	if r.Ports[0].GID != "fe80:0000:0000:0000:0202:c9ff:feaa:b001" {
		t.Error(r.Ports[0].GID)
	}
}

// Every case, with everything forbidden that its selection leaves out.
func TestNothingOutsideTheSelectionIsTouched(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		c := loadCase(t, file)
		byNameOnly := len(c.config.Selectors) > 0
		for _, s := range c.config.Selectors {
			byNameOnly = byNameOnly && s.kind == byName
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			tr := treeOf(t, c.files)
			tr.forbidden = func(name string) bool {
				if strings.Contains(name, "counters") {
					return true
				}
				device, below := strings.CutPrefix(name, classDir+"/")
				device, _, _ = strings.Cut(device, "/")
				selected := slices.ContainsFunc(c.config.Selectors, func(s Selector) bool { return glob(s.pattern, device) })
				return below && byNameOnly && !selected
			}
			p := newProber(c.config, tr)
			p.Probe(t.Context(), true)
			p.Probe(t.Context(), false)
		})
	}
}

func TestOtherDevicesVerbsEntriesAreLeftAlone(t *testing.T) {
	tr := newTree(t, roce)
	tr.set("sys/class/infiniband/mlx5_1/device/infiniband_verbs/uverbs1/", "")
	tr.forbidden = func(name string) bool { return strings.Contains(name, "uverbs0") }
	r := newProber(Config{Selectors: selectors(t, "mlx5_1")}, tr).Probe(t.Context(), true)
	want(t, r, "healthy, mlx5_1/1 healthy")
}

func TestNodeIsOpenedOnlyWhenItChanges(t *testing.T) {
	tr := newTree(t, roce)
	p := newProber(Config{Selectors: selectors(t, "mlx5_0"), Checks: Checks{Verbs: true, VerbsOpen: true}}, tr)
	// wantOpens makes one probe for each number.
	wantOpens := func(why string, want ...int) {
		t.Helper()
		for i, n := range want {
			p.Probe(t.Context(), true)
			opens := slices.DeleteFunc(tr.reset(), func(asked string) bool { return !strings.HasPrefix(asked, "open ") })
			if len(opens) != n {
				t.Errorf("%s: probe %d opened %q", why, i, opens)
			}
		}
	}
	wantOpens("at first", 1, 0, 0)
	tr.set("sys/class/infiniband_verbs/uverbs0/dev", "231:200")
	tr.set("dev/infiniband/uverbs0", "!CHR 231:200")
	wantOpens("after the node changed", 1, 0)
	tr.set("sys/class/infiniband_verbs/uverbs0/dev", "231:201")
	tr.set("dev/infiniband/uverbs0", "!EPERM")
	wantOpens("while it cannot be opened", 1, 1)
}

func TestDeviceThatGoesAndComesBackIsNoticedByLightProbes(t *testing.T) {
	tr := newTree(t, roce)
	p := newProber(Config{Selectors: selectors(t, "mlx5_*"), Require: Require{more: 1}}, tr)
	want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy, mlx5_1/1 healthy")
	whole := newTree(t, roce)
	tr.remove("sys/class/infiniband/mlx5_1")
	want(t, p.Probe(t.Context(), false), "unhealthy DeviceMissing, mlx5_0/1 healthy")
	for name, content := range whole.files {
		tr.set(name, content)
	}
	want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy, mlx5_1/1 healthy")
}

func TestAbsentOpen(t *testing.T) {
	const empty = "-- sys/class/infiniband/ --\n"
	const none = "-- sys/class/net/lo/type --\n772\n"
	vf := "-- sys/class/infiniband/mlx5_0/device/physfn/vendor --\n0x15b3\n-- sys/class/infiniband/mlx5_0/ports/1/state --\n1: DOWN\n"
	for name, tree := range map[string]string{"NoSubsystem": none, "NoDevices": empty, "only a VF": vf} {
		t.Run(name, func(t *testing.T) {
			want(t, newProber(Config{AbsentOpen: true}, newTree(t, tree)).Probe(t.Context(), true), "healthy")
		})
	}
	t.Run("nothing that matches", func(t *testing.T) {
		p := newProber(Config{AbsentOpen: true, Selectors: selectors(t, "mlx5_7", "mlx5_8"), Require: Require{all: true}}, newTree(t, roce))
		want(t, p.Probe(t.Context(), true), "healthy")
	})
	t.Run("after a device was seen", func(t *testing.T) {
		tr := newTree(t, roce)
		p := newProber(Config{AbsentOpen: true, Selectors: selectors(t, "mlx5_0")}, tr)
		p.Probe(t.Context(), true)
		tr.remove("sys/class/infiniband/mlx5_0")
		want(t, p.Probe(t.Context(), false), "unhealthy DeviceMissing")
		tr.remove("sys/class/infiniband")
		want(t, p.Probe(t.Context(), false), "unhealthy NoSubsystem")
	})
	t.Run("a device that is there counts", func(t *testing.T) {
		tr := newTree(t, roce)
		tr.set(state0, "1: DOWN")
		p := newProber(Config{AbsentOpen: true, Selectors: selectors(t, "mlx5_0")}, tr)
		want(t, p.Probe(t.Context(), true), "unhealthy PortNotActive, mlx5_0/1 unhealthy PortNotActive")
	})
}

func TestReadThatHangsMakesOnlyItsDeviceStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		p := newProber(Config{Timeout: 3 * time.Second}, tr)
		p.Probe(t.Context(), true)
		release := tr.block(state0)
		began := time.Now()
		r := p.Probe(t.Context(), false)
		want(t, r, "healthy, mlx5_0/1 unhealthy ProbeStuck, mlx5_1/1 healthy")
		if d := r.Ports[0].Detail; d != "reading /"+state0+" did not return within 3s" {
			t.Error(d)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("took %v", took)
		}

		// While it hangs nobody waits for it again and nobody asks again.
		tr.reset()

		for range 5 {
			want(t, p.Probe(t.Context(), true), "healthy, mlx5_0/1 unhealthy ProbeStuck, mlx5_1/1 healthy")
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("later probes waited: %v", took)
		}
		for _, asked := range tr.reset() {
			if strings.Contains(asked, "/mlx5_0/") {
				t.Errorf("%s: a second read of a device that hangs", asked)
			}
		}

		tr.set(state0, "1: DOWN")
		release()
		synctest.Wait()
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 unhealthy PortNotActive, mlx5_1/1 healthy")
	})
}

func TestDeviceThatNeverAnswered(t *testing.T) {
	const other = "sys/class/infiniband/mlx5_0/ports/2/state"
	for name, c := range map[string]struct {
		selectors []Selector
		hang      string
		want      string
	}{
		"hangs at its first port, so all ports are known": {selectors(t, "mlx5_0"), state0,
			"unhealthy ProbeStuck, mlx5_0/1 unhealthy ProbeStuck, mlx5_0/2 unhealthy ProbeStuck"},
		"hangs before its ports are known": {selectors(t, "mlx5_0"), "sys/class/infiniband/mlx5_0/ports",
			"unhealthy ProbeStuck, mlx5_0/1 unhealthy ProbeStuck"},
		"hangs but the selector names the port": {selectors(t, "mlx5_0/2"), "sys/class/infiniband/mlx5_0/ports",
			"unhealthy ProbeStuck, mlx5_0/2 unhealthy ProbeStuck"},
		"hangs before it is known to be selected": {selectors(t, "link-layer:infiniband"), "sys/class/infiniband/mlx5_0/ports/1/link_layer",
			"unhealthy ProbeStuck, mlx5_0/1 unhealthy ProbeStuck"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := newTree(t, roce)
				tr.set(other, "4: ACTIVE")
				release := tr.block(c.hang)
				want(t, newProber(Config{Selectors: c.selectors}, tr).Probe(t.Context(), true), c.want)
				release()
			})
		})
	}
}

func TestClassDirectoryThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		release := tr.block(classDir)
		p := newProber(Config{}, tr)
		want(t, p.Probe(t.Context(), true), "unhealthy ProbeStuck")
		release()
		synctest.Wait()
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy, mlx5_1/1 healthy")
		release = tr.block(classDir)
		want(t, p.Probe(t.Context(), true), "unhealthy ProbeStuck, mlx5_0/1 unhealthy ProbeStuck, mlx5_1/1 unhealthy ProbeStuck")
		want(t, p.Probe(t.Context(), false), "unhealthy ProbeStuck, mlx5_0/1 unhealthy ProbeStuck, mlx5_1/1 unhealthy ProbeStuck")
		release()
		synctest.Wait()
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy, mlx5_1/1 healthy")
	})
}

func TestStuckDeviceThatVanishesIsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		p := newProber(Config{Selectors: selectors(t, "mlx5_0", "mlx5_1"), Require: Require{all: true}}, tr)
		p.Probe(t.Context(), true)
		release := tr.block(state0)
		p.Probe(t.Context(), false)
		tr.remove("sys/class/infiniband/mlx5_0")
		want(t, p.Probe(t.Context(), false), "unhealthy DeviceMissing, mlx5_1/1 healthy")
		release()
	})
}

func TestProbeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		release := tr.block(state0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		newProber(Config{}, tr).Probe(ctx, true)
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v", took)
		}
		release()
	})
}

func TestMinimumRate(t *testing.T) {
	for rate, wanted := range map[string]string{
		"100 Gb/sec (4X EDR)": "healthy, mlx5_0/1 healthy",
		"50 Gb/sec (2X EDR)":  "unhealthy RateBelowMinimum, mlx5_0/1 unhealthy RateBelowMinimum",
		"!EINVAL":             "unknown AttributeUnreadable, mlx5_0/1 unknown AttributeUnreadable",
	} {
		tr := newTree(t, roce)
		tr.set("sys/class/infiniband/mlx5_0/ports/1/rate", rate)
		want(t, newProber(Config{Selectors: selectors(t, "mlx5_0"), MinRateGbps: 100}, tr).Probe(t.Context(), true), wanted)
	}
}

func TestRateOfInactivePortMeansNothing(t *testing.T) {
	tr := newTree(t, roce)
	tr.set(state0, "1: DOWN")
	tr.set("sys/class/infiniband/mlx5_0/ports/1/rate", "!EINVAL")
	r := newProber(Config{Selectors: selectors(t, "mlx5_0"), MinRateGbps: 100}, tr).Probe(t.Context(), true)
	want(t, r, "unhealthy PortNotActive, mlx5_0/1 unhealthy PortNotActive")
}

func TestModules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		tr.set("sys/module/nvme_rdma/", "")
		p := newProber(Config{Selectors: selectors(t, "mlx5_0"), Modules: []string{"nvme-rdma", "rpcrdma"}}, tr)
		r := p.Probe(t.Context(), true)
		want(t, r, "unhealthy ModuleMissing, mlx5_0/1 healthy")
		if got := r.Troubles()[0].String(); got != "rpcrdma ModuleMissing (/sys/module/rpcrdma does not exist)" {
			t.Error(got)
		}
		tr.set("sys/module/rpcrdma/", "")
		want(t, p.Probe(t.Context(), false), "unhealthy ModuleMissing, mlx5_0/1 healthy")
		time.Sleep(refreshEvery)
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy")

		release := tr.block("sys/module/rpcrdma")
		want(t, p.Probe(t.Context(), true), "unhealthy ProbeStuck, mlx5_0/1 healthy")
		release()
		synctest.Wait()
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy")
	})
}
