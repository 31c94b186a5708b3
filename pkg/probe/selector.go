package probe

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Selector names ports that carry storage. It is made by ParseSelectors.
type Selector struct {
	text    string
	kind    selectorKind
	pattern string // device or interface glob, PCI address or link layer
	port    int    // 0 is every port
}

type selectorKind uint8

const (
	byName selectorKind = iota
	byPCI
	byNetdev
	byLinkLayer
)

const selectorForms = "write a device name or glob, one port as mlx4_0/2, pci:0000:17:00.0, netdev:ens1f0* or link-layer:infiniband"

// The domain has more than four digits behind some bridges.
var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// String is the selector as it was written.
func (s Selector) String() string { return s.text }

// Exact says that the selector names one device, so that its absence can be noticed.
func (s Selector) Exact() bool {
	return s.kind == byPCI || s.kind == byName && !strings.ContainsAny(s.pattern, `*?[\`)
}

// ParseSelectors reads --rdma-device: each value is one selector or several with commas between.
func ParseSelectors(values []string) ([]Selector, error) {
	var selectors []Selector
	for _, value := range values {
		for text := range strings.SplitSeq(value, ",") {
			s, err := parseSelector(strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			selectors = append(selectors, s)
		}
	}
	return selectors, nil
}

func parseSelector(text string) (Selector, error) {
	if text == "" {
		return Selector{}, fmt.Errorf("an empty selector; %s", selectorForms)
	}
	kind, pattern, found := strings.Cut(text, ":")
	if !found {
		return parseNameSelector(text)
	}
	s := Selector{text: text, pattern: pattern}
	switch kind {
	case "pci":
		s.kind = byPCI
		s.pattern = strings.ToLower(pattern)
		if !pciAddress.MatchString(s.pattern) {
			return s, fmt.Errorf("%q: not a full PCI address; write it as in pci:0000:17:00.0, without globs", text)
		}
	case "netdev":
		s.kind = byNetdev
		if !validGlob(pattern) {
			return s, fmt.Errorf("%q: not an interface name or glob; write it as in netdev:ens1f0*", text)
		}
	case "link-layer":
		s.kind = byLinkLayer
		if l := LinkLayer(pattern); l != InfiniBand && l != Ethernet && l != IWARP {
			return s, fmt.Errorf("%q: no link layer %s; write link-layer:infiniband, link-layer:ethernet or link-layer:iwarp", text, pattern)
		}
	default:
		return s, fmt.Errorf("%q: no selector %s:; %s", text, kind, selectorForms)
	}
	return s, nil
}

func parseNameSelector(text string) (Selector, error) {
	s := Selector{text: text, kind: byName, pattern: text}
	if name, number, found := strings.Cut(text, "/"); found {
		port, err := strconv.Atoi(number)
		if err != nil || port < 1 {
			return s, fmt.Errorf("%q: no port %s; write one port as in mlx4_0/2", text, number)
		}
		s.pattern, s.port = name, port
	}
	if !validGlob(s.pattern) {
		return s, fmt.Errorf("%q: not a device name or glob; %s", text, selectorForms)
	}
	return s, nil
}

func validGlob(pattern string) bool {
	_, err := path.Match(pattern, "")
	return err == nil && pattern != "" && !strings.Contains(pattern, "/")
}

// mayMatch says, from the name alone, whether a device has to be looked at.
func (s Selector) mayMatch(device string) bool { return s.kind != byName || glob(s.pattern, device) }

// match returns those of the device's ports that the selector names.
func (s Selector) match(d *device, ports []int) []int {
	switch s.kind {
	case byName:
		if !glob(s.pattern, d.name) {
			return nil
		}
		return keep(ports, func(n int) bool { return s.port == 0 || s.port == n })
	case byPCI:
		if d.pciAddress() != s.pattern {
			return nil
		}
		return ports
	case byNetdev:
		return keep(ports, func(n int) bool { return d.port(n).mapsTo(s.pattern) })
	default:
		return keep(ports, func(n int) bool { return string(d.port(n).linkLayer().layer) == s.pattern })
	}
}

// missing is the trouble with a selector that named nothing.
func (s Selector) missing(devices []string) Trouble {
	what := "matches no device"
	switch {
	case s.kind == byPCI:
		what = "no RDMA device has this address"
	case s.Exact() && !slices.Contains(devices, s.pattern):
		what = "no such device"
	case s.port != 0:
		what = "no such port"
	}
	return Trouble{Subject: s.text, Reason: DeviceMissing, Detail: what + "; devices here: " + shortList(devices)}
}

// shortList keeps a node with a hundred virtual functions from filling the message.
func shortList(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// glob reports a match; the pattern has been validated.
func glob(pattern, name string) bool {
	ok, _ := path.Match(pattern, name)
	return ok
}

func keep(ports []int, want func(int) bool) []int {
	return slices.DeleteFunc(slices.Clone(ports), func(n int) bool { return !want(n) })
}
