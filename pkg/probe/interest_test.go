package probe

import (
	"errors"
	"strconv"
	"syscall"
	"testing"
)

// namespace is what a network namespace holds.
type namespace []linkNotice

func (ns namespace) lookup(name string, index int) (linkNotice, error) {
	for _, l := range ns {
		if l.name == name || name == "" && l.index == index {
			return l, nil
		}
	}
	return linkNotice{}, syscall.ENODEV
}

func anInterface(index int, name string, change func(*linkNotice)) linkNotice {
	l := linkNotice{index: index, name: name, flags: 1}
	if change != nil {
		change(&l)
	}
	return l
}

// following is an interest in the interfaces of one port.
func following(ns namespace, p Port) *interest {
	i := &interest{lookup: ns.lookup}
	i.follow(&Health{Result: Result{Ports: []Port{p}}})
	return i
}

func portOn(netdevs ...string) Port {
	return Port{Device: "mlx5_0", Number: 1, Verdict: Healthy, LinkLayer: Ethernet, Netdevs: netdevs}
}

func TestWhatConcernsAPort(t *testing.T) {
	down := func(l *linkNotice) { l.flags = 0 }
	gone := func(l *linkNotice) { l.gone = true }
	kind := func(k string) func(*linkNotice) { return func(l *linkNotice) { l.kind = k } }
	lower := func(n int) func(*linkNotice) { return func(l *linkNotice) { l.lower, l.kind = n, "vlan" } }
	master := func(n int) func(*linkNotice) { return func(l *linkNotice) { l.master = n } }
	ns := namespace{
		anInterface(2, "ens1f0", nil), anInterface(3, "ens2f0", nil),
		anInterface(10, "bond0", kind("bond")), anInterface(11, "bond0.5", lower(10)),
		anInterface(20, "lost.7", lower(99)),
	}
	short := Port{Device: "mlx5_0", Number: 1, Verdict: Unhealthy, Reason: NetdevMissing, LinkLayer: Ethernet}
	for name, c := range map[string]struct {
		port    Port
		notices []notice
		want    string // a letter for each notice: y or n
	}{
		"the interface itself":                  {portOn("ens1f0"), []notice{anInterface(2, "ens1f0", down)}, "y"},
		"another interface":                     {portOn("ens1f0"), []notice{anInterface(3, "ens2f0", down), anInterface(3, "ens2f0", gone)}, "nn"},
		"a pod's":                               {portOn("ens1f0"), []notice{anInterface(44, "veth1a2b", kind("veth")), anInterface(44, "veth1a2b", gone)}, "nn"},
		"a VLAN on top, whose fate is its own":  {portOn("ens1f0"), []notice{anInterface(44, "ens1f0.9", lower(2))}, "n"},
		"nothing that matters has changed":      {portOn("ens1f0"), []notice{anInterface(2, "ens1f0", down), anInterface(2, "ens1f0", down), anInterface(2, "ens1f0", nil)}, "yny"},
		"gone, and there again":                 {portOn("ens1f0"), []notice{anInterface(2, "ens1f0", gone), anInterface(7, "ens1f0", nil), anInterface(7, "ens1f0", nil)}, "yyn"},
		"its index given to another":            {portOn("ens1f0"), []notice{anInterface(2, "ens1f0", gone), anInterface(2, "veth7", kind("veth"))}, "yn"},
		"renamed":                               {portOn("ens1f0"), []notice{anInterface(2, "ens9f0", nil), anInterface(2, "ens9f0", nil)}, "yn"},
		"member of the bond":                    {portOn("bond0"), []notice{anInterface(2, "ens1f0", master(10)), anInterface(3, "ens2f0", nil)}, "yn"},
		"member that leaves the bond":           {portOn("bond0"), []notice{anInterface(2, "ens1f0", master(10)), anInterface(2, "ens1f0", nil), anInterface(2, "ens1f0", down)}, "yyn"},
		"member of the bond below a VLAN":       {portOn("bond0.5"), []notice{anInterface(10, "bond0", down), anInterface(2, "ens1f0", master(10))}, "yy"},
		"member of another's bridge":            {portOn("bond0"), []notice{anInterface(44, "veth1", master(33))}, "n"},
		"below, but unknown":                    {portOn("lost.7"), []notice{anInterface(20, "lost.7", down), anInterface(98, "x", nil), anInterface(99, "y", nil)}, "yny"},
		"not found at first":                    {portOn("late0"), []notice{anInterface(50, "late0", nil), anInterface(50, "late0", gone)}, "yy"},
		"gone although never found":             {portOn("late0"), []notice{anInterface(50, "late0", gone)}, "y"},
		"new hardware while a port is short":    {short, []notice{anInterface(50, "ens5f0", nil), anInterface(51, "ib0", kind("ipoib")), anInterface(52, "bond1", kind("bond")), anInterface(50, "ens5f0", nil)}, "yyyn"},
		"a pod's while a port is short":         {short, []notice{anInterface(44, "veth1", kind("veth")), anInterface(45, "lxc", kind("netkit")), anInterface(46, "ens5f0", gone)}, "nnn"},
		"new hardware while no port is short":   {portOn("ens1f0"), []notice{anInterface(50, "ens5f0", nil)}, "n"},
		"layer not checked, port healthy":       {portOn(), []notice{anInterface(50, "ens5f0", nil)}, "n"},
		"an address":                            {portOn("ens1f0"), []notice{addressNotice{index: 2, address: "a"}}, "y"},
		"an address elsewhere":                  {portOn("ens1f0"), []notice{addressNotice{index: 3, address: "a"}, addressNotice{index: 3, address: "a", gone: true}}, "nn"},
		"an address renewed":                    {portOn("ens1f0"), []notice{addressNotice{index: 2, address: "a"}, addressNotice{index: 2, address: "a"}, addressNotice{index: 2, address: "b"}}, "yny"},
		"an address that duplicates another's":  {portOn("ens1f0"), []notice{addressNotice{index: 2, address: "a", flags: 64}, addressNotice{index: 2, address: "a", flags: 8}}, "yy"},
		"an address gone, and there again":      {portOn("ens1f0"), []notice{addressNotice{index: 2, address: "a", gone: true}, addressNotice{index: 2, address: "a"}}, "yy"},
		"an RDMA device, selected or not":       {portOn("ens1f0"), []notice{deviceNotice{"add", "infiniband", "mlx5_7"}, deviceNotice{"remove", "infiniband_verbs", "uverbs7"}}, "yy"},
		"an RDMA device renamed, and refreshed": {portOn("ens1f0"), []notice{deviceNotice{"move", "infiniband", "ibp1s0"}, deviceNotice{"change", "infiniband", "ibp1s0"}}, "yy"},
		"other devices and actions":             {portOn("ens1f0"), []notice{deviceNotice{"add", "net", "veth1"}, deviceNotice{"bind", "infiniband", "mlx5_0"}, deviceNotice{"add", "infiniband_mad", "umad0"}}, "nnn"},
		"no notice at all":                      {portOn("ens1f0"), []notice{nil}, "n"},
	} {
		t.Run(name, func(t *testing.T) {
			i := following(ns, c.port)
			got := ""
			for _, n := range c.notices {
				got += map[bool]string{true: "y", false: "n"}[i.concerns(n)]
			}
			if got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestLowerInterfacesInACircleEnd(t *testing.T) {
	ns := namespace{{index: 5, name: "veth0", lower: 6}, {index: 6, name: "veth1", lower: 5}}
	i := following(ns, portOn("veth0"))
	if !i.concerns(linkNotice{index: 6, name: "veth1"}) {
		t.Error("the peer does not concern")
	}
}

func TestInterfacesAreLookedUpOnlyWhenTheyAreOthers(t *testing.T) {
	asked := 0
	i := &interest{lookup: func(string, int) (linkNotice, error) { asked++; return linkNotice{}, errors.New("busy") }}
	for n, ports := range [][]Port{nil, {portOn("a")}, {portOn("a")}, {portOn("b"), portOn("a")}, {portOn("a", "b")}, {portOn("b")}, nil} {
		i.follow(&Health{Result: Result{Ports: ports}})
		if want := []int{0, 1, 1, 3, 3, 4, 4}[n]; asked != want {
			t.Errorf("step %d: %d look-ups, want %d", n, asked, want)
		}
	}
}

// What is remembered stays small however many interfaces come and go.
func TestNothingIsRememberedOfOthers(t *testing.T) {
	i := following(namespace{anInterface(2, "ens1f0", nil)}, portOn("ens1f0"))
	for n := range 1000 {
		index := 100 + n
		l := anInterface(index, "veth"+strconv.Itoa(n), func(l *linkNotice) { l.kind, l.lower = "veth", 2 })
		for _, n := range []notice{l, addressNotice{index: index, address: "a"}, anInterface(2, "ens1f0", nil), addressNotice{index: 2, address: "a"}} {
			i.concerns(n)
		}
		l.gone = true
		i.concerns(l)
	}
	if len(i.found) != 1 || len(i.links) != 1 || len(i.addresses) != 1 {
		t.Errorf("%d interfaces, %d links, %d addresses", len(i.found), len(i.links), len(i.addresses))
	}
}

func TestElsewhere(t *testing.T) {
	here := namespace{anInterface(2, "ens1f0", nil)}
	infiniband, mismatch, busy := portOn("ib0"), portOn(), portOn("ens9f0")
	infiniband.LinkLayer = InfiniBand
	mismatch.Verdict, mismatch.Reason = Unknown, NamespaceMismatch
	for name, c := range map[string]struct {
		ports []Port
		want  bool
	}{
		"here":               {[]Port{portOn("ens1f0")}, false},
		"not here":           {[]Port{portOn("ens9f0"), portOn("ens9f1")}, true},
		"one of two":         {[]Port{busy, portOn("ens1f0")}, false},
		"InfiniBand":         {[]Port{infiniband}, false},
		"namespace mismatch": {[]Port{mismatch}, true},
		"no interface known": {[]Port{portOn()}, false},
		"no port":            {nil, false},
	} {
		i := &interest{lookup: here.lookup}
		i.follow(&Health{Result: Result{Ports: c.ports}})
		if got := i.elsewhere(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	gone := following(here, portOn("ens1f0"))
	gone.concerns(anInterface(2, "ens1f0", func(l *linkNotice) { l.gone = true }))
	if gone.elsewhere() {
		t.Error("an interface that was here and is gone counts as elsewhere")
	}
	blind := &interest{lookup: func(string, int) (linkNotice, error) { return linkNotice{}, syscall.EPERM }}
	blind.follow(&Health{Result: Result{Ports: []Port{portOn("ens1f0")}}})
	if blind.elsewhere() {
		t.Error("an interface that could not be looked up counts as elsewhere")
	}
}
