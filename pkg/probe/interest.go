package probe

import (
	"errors"
	"slices"
	"syscall"
)

// notice is something that the kernel tells of: a linkNotice, an addressNotice or a deviceNotice.
type notice any

// linkNotice is what an interface has become, as far as it matters to a port. Two that are equal
// tell of a change in something else, such as promiscuous mode or statistics.
type linkNotice struct {
	index int
	name  string
	gone  bool
	// lower is the interface that this one sits on (VLAN, macvlan), master the one that it is part
	// of (bond). 0 is none, or one in another namespace, where the same number means another
	// interface.
	lower, master int
	flags         uint32 // those that say up and carrier
	address       string
	kind          string // "veth", "bond"; empty for hardware
}

// addressNotice is an IP address that came, went, or changed.
type addressNotice struct {
	index   int
	address string
	flags   uint32
	gone    bool
}

// deviceNotice is a device that came, went, or changed.
type deviceNotice struct{ action, subsystem, device string }

// interest tells notices that concern the selected ports from the many that do not: where pods come
// and go, hundreds of interfaces do so every minute. Not safe for concurrent use.
type interest struct {
	// lookup asks for an interface by name, or by index if the name is empty.
	lookup func(name string, index int) (linkNotice, error)

	followed *Health
	names    []string // interfaces of the selected ports, sorted
	lacking  bool     // some selected port is short of an interface
	absent   bool     // none of names exists in this namespace

	// Where names were found: the interfaces, and what they sit on.
	found map[int]bool
	// What the last notice of an interface said. A notice that repeats it is of no interest.
	links     map[int]linkNotice
	addresses map[addressKey]uint32
}

type addressKey struct {
	index   int
	address string
}

// follow takes the selected interfaces from h. They are looked up when they are others than before.
func (i *interest) follow(h *Health) {
	if h == i.followed {
		return
	}
	i.followed = h
	var names []string
	i.lacking = false
	for p := range h.Ports {
		port := &h.Ports[p]
		names = append(names, port.Netdevs...)
		i.lacking = i.lacking || len(port.Netdevs) == 0 && port.Verdict != Healthy
	}
	slices.Sort(names)
	names = slices.Compact(names)
	if i.found != nil && slices.Equal(names, i.names) {
		return
	}
	i.names, i.found, i.absent = names, make(map[int]bool), len(names) > 0
	for _, name := range names {
		l, err := i.lookup(name, 0)
		if err == nil {
			i.find(l)
		}
		i.absent = i.absent && errors.Is(err, syscall.ENODEV)
	}
	i.forget()
}

// find takes in an interface and those below. What is below a bond names the bond itself.
func (i *interest) find(l linkNotice) {
	for !i.found[l.index] {
		i.found[l.index] = true
		if l.lower == 0 {
			return
		}
		lower, err := i.lookup("", l.lower)
		if err != nil {
			i.found[l.lower] = true
			return
		}
		l = lower
	}
}

// forget makes every notice news.
func (i *interest) forget() {
	i.links = make(map[int]linkNotice)
	i.addresses = make(map[addressKey]uint32)
}

// elsewhere says that the selected ports have Ethernet interfaces, but none in this namespace. On
// InfiniBand it would make no difference, since ports there send no events.
func (i *interest) elsewhere() bool {
	return slices.ContainsFunc(i.followed.Ports, func(p Port) bool {
		ethernet := p.LinkLayer == Ethernet || p.LinkLayer == IWARP
		return ethernet && (len(p.Netdevs) > 0 && i.absent || len(i.names) == 0 && p.Reason == NamespaceMismatch)
	})
}

// concerns says whether a notice is worth a probe.
func (i *interest) concerns(n notice) bool {
	switch n := n.(type) {
	case linkNotice:
		return i.concernsLink(n)
	case addressNotice:
		return i.concernsAddress(n)
	case deviceNotice:
		return concernsDevice(n)
	}
	return false
}

func (i *interest) concernsLink(n linkNotice) bool {
	last, known := i.links[n.index]
	_, named := slices.BinarySearch(i.names, n.name)
	if named && !n.gone {
		i.find(n) // it may have come back with another index
	}
	ours := i.found[n.index] || i.found[n.master] || i.lacking && !n.gone && mayCarryPort(n.kind)
	if n.gone || !ours {
		delete(i.links, n.index)
		delete(i.found, n.index)
		return known || named || ours
	}
	i.links[n.index] = n
	return !known || last != n
}

// mayCarryPort says whether an interface of this kind could be the one that a port is short of.
// Soft devices sit on any kind, but they vanish with it and tell so when they are made again.
func mayCarryPort(kind string) bool { return kind == "" || kind == "ipoib" || kind == "bond" }

// concernsAddress goes by the address too, since router advertisements renew addresses for ever.
func (i *interest) concernsAddress(n addressNotice) bool {
	if !i.found[n.index] {
		return false
	}
	key := addressKey{n.index, n.address}
	last, known := i.addresses[key]
	if n.gone {
		delete(i.addresses, key)
		return true
	}
	i.addresses[key] = n.flags
	return !known || last != n.flags
}

// concernsDevice takes every RDMA device: which of them the selection means cannot be told from a
// notice, and they seldom come and go.
func concernsDevice(n deviceNotice) bool {
	if n.subsystem != "infiniband" && n.subsystem != "infiniband_verbs" {
		return false
	}
	return slices.Contains([]string{"add", "remove", "change", "move"}, n.action)
}
