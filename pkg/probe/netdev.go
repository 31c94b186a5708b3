package probe

import (
	"encoding/hex"
	"errors"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// arphrdInfiniBand is the type of an IPoIB interface.
const arphrdInfiniBand = "32"

// netdevSighting is what maps to a port and whether it is up.
type netdevSighting struct {
	names    []string
	watched  []string // those of names whose carrier was read
	carriers []carrier
	finding
}

// checkNetdev wants an interface that maps to the port and, on Ethernet, one with carrier. It stops
// at the first that will do.
func (p port) checkNetdev(link link, gidHint int) netdevSighting {
	var s netdevSighting
	if link.err != nil {
		s.finding = unreadable("link_layer", link.err)
		return s
	}
	var foreign []string
	var failed error
	// A port that is not active has no need of another interface: its table need not be walked.
	for name, err := range p.mapping(link, gidHint, link.active) {
		switch {
		case err != nil:
			failed = errors.Join(failed, err)
		case !p.exists(netDir, name):
			foreign = append(foreign, name)
		case !link.ethernet():
			s.names = append(s.names, name)
			return s
		default:
			c := p.carrier(name)
			s.names = append(s.names, name)
			s.watched, s.carriers = s.names, append(s.carriers, c)
			if c.up {
				return s
			}
		}
	}
	switch {
	case len(s.carriers) > 0:
		s.finding = noCarrier(s.carriers)
	case len(foreign) > 0:
		s.finding = findingf(NamespaceMismatch, "interface %s is not in this network namespace", tidy(strings.Join(foreign, ", ")))
	case failed != nil:
		s.finding = unreadable("mapping to an interface", failed)
	default:
		s.finding = p.unmapped(link)
	}
	return s
}

// unmapped explains why no interface maps to a port. Outside the host's network namespace RoCE
// ports show neither interfaces nor GIDs, which says nothing about the hardware.
func (p port) unmapped(link link) finding {
	if link.layer == InfiniBand {
		return findingf(NetdevMissing, "no IPoIB interface with GUID %s under device/net", p.slot(0).gid.guid())
	}
	if slots, zero := p.allZero(); link.roce() && link.active && zero {
		return findingf(NamespaceMismatch, "port ACTIVE, no interface, all %d GIDs zero", slots)
	}
	return findingf(NetdevMissing, "neither gid_attrs/ndevs nor device/net names an interface")
}

func (p port) allZero() (slots int, zero bool) {
	for s := range p.slots {
		if s.err != nil || !s.gid.zero() {
			return slots, false
		}
		slots++
	}
	return slots, slots > 0
}

// mapsTo says whether an interface that maps to the port, here or in another namespace, has a name
// that matches.
func (p port) mapsTo(pattern string) bool {
	for name, err := range p.mapping(p.linkLayer(), -1, true) {
		if err == nil && glob(pattern, name) {
			return true
		}
	}
	return false
}

// mapping yields each interface once, the likeliest and cheapest first, and errors that kept it
// from looking further. Unless deep, it spares the GID table, which can be long, if there is an
// interface without it.
func (p port) mapping(link link, gidHint int, deep bool) func(func(string, error) bool) {
	seen := make(map[string]bool)
	return func(yield func(string, error) bool) {
		once := func(name string, err error) bool {
			if err == nil && (name == "" || seen[name]) {
				return true
			}
			seen[name] = true
			return yield(name, err)
		}
		switch {
		case link.layer == InfiniBand:
			p.ipoib(once)
		case gidHint >= 0 && !once(p.ndevAt(gidHint)):
		case !p.deviceNet(once):
		case !once(p.parent()):
		case deep || len(seen) == 0:
			p.ndevs(once)
		}
	}
}

// ndevs yields the interfaces that GIDs belong to.
func (p port) ndevs(yield func(string, error) bool) {
	for s := range p.slots {
		name, err := "", s.err
		switch {
		case isAbsent(err), err == nil && s.gid.zero():
			continue
		case err == nil:
			name, err = p.ndevAt(s.index)
		}
		if !yield(name, err) {
			return
		}
	}
}

func (p port) ndevAt(index int) (string, error) {
	return p.interfaceName(p.portAttr("gid_attrs/ndevs", strconv.Itoa(index)))
}

// parent names the interface below a soft device, which has no device link.
func (p port) parent() (string, error) { return p.interfaceName(p.attr(p.path("parent"))) }

// interfaceName makes sure that a name, which becomes part of a path, is one.
func (p port) interfaceName(a attr) (string, error) {
	if isEmptySlot(a.err) || errors.Is(a.err, errEmpty) {
		return "", nil
	}
	if a.err != nil {
		return "", a.err
	}
	if strings.Contains(a.text, "/") || a.text == "." || a.text == ".." || a.text != tidy(a.text) {
		return "", errors.New("not an interface name: " + tidy(a.text))
	}
	return a.text, nil
}

// deviceNet yields the interfaces of the device below that carry this port's number. It returns
// false once yield has.
func (p port) deviceNet(yield func(string, error) bool) bool {
	names, err := p.readDir(p.path("device/net"))
	if err != nil {
		return isAbsent(err) || yield("", err)
	}
	for _, name := range names {
		ours, err := p.hasDevPort(name)
		if (err != nil || ours) && !yield(name, err) {
			return false
		}
	}
	return true
}

// hasDevPort counts from zero. A driver without dev_port has one port.
func (p port) hasDevPort(name string) (bool, error) {
	a := p.attr(p.path("device/net", name, "dev_port"))
	if isAbsent(a.err) {
		return p.number == 1, nil
	}
	if a.err != nil {
		return false, a.err
	}
	n, err := strconv.Atoi(a.text)
	return n == p.number-1, err
}

// ipoib yields the IPoIB interfaces whose hardware address ends in the port's GUID. The node's GUID
// would not do: ports have their own.
func (p port) ipoib(yield func(string, error) bool) {
	first := p.slot(0)
	if first.err != nil {
		yield("", first.err)
		return
	}
	names, err := p.readDir(p.path("device/net"))
	if err != nil && !isAbsent(err) {
		yield("", err)
	}
	for _, name := range names {
		dir := p.path("device/net", name)
		if p.attr(dir, "type").text != arphrdInfiniBand {
			continue
		}
		guid, err := parseIPoIBGUID(p.attr(dir, "address"))
		if err != nil || guid == [8]byte(first.gid[8:]) {
			if !yield(name, err) {
				return
			}
		}
	}
}

// parseIPoIBGUID takes bytes 12 to 19 of a 20-byte hardware address.
func parseIPoIBGUID(a attr) (guid [8]byte, err error) {
	if a.err != nil {
		return guid, a.err
	}
	address, err := hex.DecodeString(strings.ReplaceAll(a.text, ":", ""))
	if err != nil || len(address) != 20 {
		return guid, errors.New("not an IPoIB address: " + tidy(a.text))
	}
	return [8]byte(address[12:]), nil
}

// carrier says whether an interface has a link.
type carrier struct {
	up   bool
	text string // what an operator should see
	err  error
}

// carrier reads EINVAL while the interface is down.
func (p port) carrier(name string) carrier {
	a := p.attr(path.Join(netDir, name, "carrier"))
	switch {
	case errors.Is(a.err, syscall.EINVAL):
		return carrier{text: name + " is down"}
	case isAbsent(a.err):
		return p.operstate(name)
	case a.err != nil || a.text != "0" && a.text != "1":
		return carrier{text: name + " carrier " + a.String(), err: errors.Join(a.err, errors.New("neither 0 nor 1"))}
	}
	return carrier{up: a.text == "1", text: name + " carrier " + a.text}
}

// operstate stands in for carrier in a copied tree, which lacks that file if the interface was down.
func (p port) operstate(name string) carrier {
	a := p.attr(path.Join(netDir, name, "operstate"))
	return carrier{
		up:   a.text == "up" || a.text == "unknown",
		text: name + " operstate " + a.String(),
		err:  a.err,
	}
}

func noCarrier(carriers []carrier) finding {
	var texts []string
	reason := NetdevNoCarrier
	for _, c := range carriers {
		texts = append(texts, c.text)
		if c.err != nil {
			reason = AttributeUnreadable
		}
	}
	return finding{reason, tidy(strings.Join(texts, ", "))}
}
