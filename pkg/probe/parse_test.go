package probe

import (
	"math"
	"strings"
	"testing"
	"unicode"
)

func TestParseSelectorsSaysWhatToWriteInstead(t *testing.T) {
	for text, want := range map[string]string{
		"":                  `an empty selector; `,
		"mlx5_0,,mlx5_1":    `an empty selector; `,
		"mlx5_[":            `"mlx5_[": not a device name or glob; `,
		"mlx4_0/0":          `"mlx4_0/0": no port 0; write one port as in mlx4_0/2`,
		"mlx4_0/x":          `"mlx4_0/x": no port x; write one port as in mlx4_0/2`,
		"/sys/class/x":      `"/sys/class/x": no port sys/class/x; `,
		"pci:17:00.0":       `"pci:17:00.0": not a full PCI address; write it as in pci:0000:17:00.0, without globs`,
		"pci:0000:17:00.*":  `"pci:0000:17:00.*": not a full PCI address; `,
		"netdev:":           `"netdev:": not an interface name or glob; write it as in netdev:ens1f0*`,
		"link-layer:ib":     `"link-layer:ib": no link layer ib; write link-layer:infiniband, link-layer:ethernet or link-layer:iwarp`,
		"guid:0002c90300aa": `"guid:0002c90300aa": no selector guid:; write a device name or glob, `,
	} {
		_, err := ParseSelectors([]string{text})
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %s…", text, err, want)
		}
	}
}

func TestParseSelectors(t *testing.T) {
	got := selectors(t, "mlx5_*, mlx4_0/2", "pci:0000:AF:00.1", "netdev:ens1f0*", "link-layer:iwarp")
	exact := []bool{false, true, true, false, false}
	if len(got) != len(exact) {
		t.Fatalf("%v", got)
	}
	for i, s := range got {
		if s.Exact() != exact[i] {
			t.Errorf("%v: exact is %v", s, s.Exact())
		}
	}
	if none, err := ParseSelectors(nil); none != nil || err != nil {
		t.Errorf("%v %v", none, err)
	}
}

func TestParseRequire(t *testing.T) {
	for text, selectedFive := range map[string]int{"any": 1, "1": 1, "3": 3, "all": 5} {
		q, err := ParseRequire(text)
		if err != nil || q.count(5) != selectedFive {
			t.Errorf("%s: %v %v", text, q, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "some", "1.5"} {
		if _, err := ParseRequire(text); err == nil || !strings.Contains(err.Error(), "write any, all or a number from 1") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAllNeedsExactNames(t *testing.T) {
	all := Require{all: true}
	for text, ok := range map[string]bool{
		"mlx5_0,mlx5_1": true, "mlx4_0/2,pci:0000:17:00.0": true,
		"mlx5_*": false, "mlx5_0,netdev:ens1": false, "link-layer:infiniband": false,
	} {
		if err := CheckRequire(selectors(t, text), all); (err == nil) != ok {
			t.Errorf("%s: %v", text, err)
		}
		if err := CheckRequire(selectors(t, text), Require{more: 1}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	if CheckRequire(nil, all) == nil {
		t.Error("all without a selection")
	}
}

func TestParseChecks(t *testing.T) {
	if c, err := ParseChecks("port, verbs-open"); err != nil || c != (Checks{Port: true, Verbs: true, VerbsOpen: true}) {
		t.Errorf("%+v %v", c, err)
	}
	_, err := ParseChecks("port,gidd")
	if err == nil || err.Error() != `"port,gidd": no check gidd; write a list of port, gid, netdev, verbs, verbs-open` {
		t.Error(err)
	}
	if _, err := ParseChecks(""); err == nil {
		t.Error("an empty list")
	}
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]float64{
		"400 Gb/sec (4X NDR)": 400, "2.5 Gb/sec (1X SDR)": 2.5, "0 GB/sec": 0, "1600 Gb/sec (8X XDR)": 1600,
	} {
		if got, err := parseRate(attr{text: text}); err != nil || got != want {
			t.Errorf("%s: %v %v", text, got, err)
		}
	}
	for _, text := range []string{"", "400", "Gb/sec", "NaN Gb/sec", "-1 Gb/sec", "400 Mb/sec"} {
		if got, err := parseRate(attr{text: text}); err == nil {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func TestParseOverride(t *testing.T) {
	for text, want := range map[string]Override{
		"open fabric test":         {Open: true, Why: "fabric test"},
		"closed\x20 bad \x07cable": {Why: "bad cable"},
		"open":                     {Open: true, Why: "no reason given"},
		"closed ":                  {Why: "no reason given"},
		"open: ticket 4711":        {Open: true, Why: "ticket 4711"},
	} {
		if o, err := parseOverride(text); err != nil || *o != want {
			t.Errorf("%q: %+v %v", text, o, err)
		}
	}
	for _, text := range []string{"", "OPEN x", "opened x", "true"} {
		if o, err := parseOverride(text); err == nil {
			t.Errorf("%q: %+v", text, o)
		}
	}
}

func TestNaturalOrder(t *testing.T) {
	inOrder := []string{"ibP2p3s0", "ibP16p3s0", "ibp3s0", "mlx4_0", "mlx5_02", "mlx5_2", "mlx5_10", "mlx5_bond_0", "mlx5_bond_10"}
	names := append([]string(nil), inOrder...)
	for i := range names {
		j := (i*5 + 3) % len(names)
		names[i], names[j] = names[j], names[i]
	}
	sortNatural(names)
	if got, want := strings.Join(names, " "), strings.Join(inOrder, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func FuzzParseID(f *testing.F) {
	for _, s := range []string{"4: ACTIVE", "0: <unknown>", "4: ACTIVE   ", "-1: x", ":", "99999999999999999999: x", "4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := parseID(attr{text: text})
		if err == nil && (id < 0 || id > math.MaxInt32) {
			t.Errorf("%q: %d", text, id)
		}
	})
}

func FuzzParseRate(f *testing.F) {
	for _, s := range []string{"400 Gb/sec (4X NDR)", "2.5 Gb/sec (1X SDR)", "0 GB/sec", "NaN Gb/sec", "Inf Gb/sec"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if gbps, err := parseRate(attr{text: text}); err == nil && !(gbps >= 0 && gbps < 1e6) {
			t.Errorf("%q: %v", text, gbps)
		}
	})
}

func FuzzParseGID(f *testing.F) {
	f.Add("fe80:0000:0000:0000:0202:c9ff:feaa:b002")
	f.Add("0000:0000:0000:0000:0000:0000:0000:0000")
	f.Add("fe80::1")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := parseGID(text)
		if err == nil && g.String() != strings.ToLower(text) {
			t.Errorf("%q became %v", text, g)
		}
	})
}

func FuzzParseDev(f *testing.F) {
	f.Add("231:192")
	f.Add("231")
	f.Fuzz(func(t *testing.T, text string) {
		_, _, err := parseDev(attr{text: text})
		if err == nil && !strings.Contains(text, ":") {
			t.Errorf("%q was taken", text)
		}
	})
}

func FuzzParseIPoIBGUID(f *testing.F) {
	f.Add("80:00:01:07:fe:80:00:00:00:00:00:00:00:02:c9:03:00:aa:b0:01")
	f.Add("00:02:c9:aa:b0:02")
	f.Fuzz(func(t *testing.T, text string) { _, _ = parseIPoIBGUID(attr{text: text}) })
}

func FuzzParseSelector(f *testing.F) {
	for _, s := range []string{"mlx5_*", "mlx4_0/2", "pci:0000:17:00.0", "netdev:ens1f0*", "link-layer:infiniband", "a[", ":", "/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseSelector(text)
		if err != nil {
			return
		}
		if s.String() != text {
			t.Errorf("%q became %v", text, s)
		}
		s.mayMatch("mlx5_0")
	})
}

func FuzzParseLists(f *testing.F) {
	f.Add("port,gid", "any")
	f.Add("verbs-open", "12")
	f.Fuzz(func(t *testing.T, checks, require string) {
		if c, err := ParseChecks(checks); err == nil && c == (Checks{}) {
			t.Errorf("%q checks nothing", checks)
		}
		if q, err := ParseRequire(require); err == nil && q.count(1) < 1 {
			t.Errorf("%q requires nothing", require)
		}
	})
}

func FuzzParseOverride(f *testing.F) {
	for _, s := range []string{"open why", "closed why", "open", "x", "open \x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := parseOverride(text)
		if err == nil && (o.Why == "" || strings.ContainsFunc(o.Why, unicode.IsControl)) {
			t.Errorf("%q: %+v", text, o)
		}
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	})
}

func FuzzTidy(f *testing.F) {
	f.Add("state 4: ACTIVE\n")
	f.Add("\x1b[31mred\x00\xff")
	f.Fuzz(func(t *testing.T, text string) {
		if got := tidy(text); strings.ContainsFunc(got, unicode.IsControl) || len([]rune(got)) > 81 {
			t.Errorf("%q became %q", text, got)
		}
	})
}
