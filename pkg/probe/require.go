package probe

import (
	"fmt"
	"strconv"
)

// Require says how many of the selected ports must be healthy. The zero value is "any".
type Require struct {
	all  bool
	more int // beyond the one that is always required
}

// ParseRequire reads "any", "all" or a number of ports.
func ParseRequire(text string) (Require, error) {
	switch text {
	case "any":
		return Require{}, nil
	case "all":
		return Require{all: true}, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return Require{}, fmt.Errorf("%q: neither any, all nor a number of ports; write any, all or a number from 1", text)
	}
	return Require{more: n - 1}, nil
}

func (q Require) String() string {
	switch {
	case q.all:
		return "all"
	case q.more == 0:
		return "any"
	default:
		return strconv.Itoa(q.more + 1)
	}
}

const exactInstead = "name each device or PCI address, or require a number of ports"

// CheckRequire refuses "all" together with selectors that cannot notice a missing device.
func CheckRequire(selectors []Selector, require Require) error {
	if !require.all {
		return nil
	}
	if len(selectors) == 0 {
		return fmt.Errorf("all ports are required but none is selected, so a card that fell off the bus would not be missed; %s", exactInstead)
	}
	for _, s := range selectors {
		if !s.Exact() {
			return fmt.Errorf("all ports of %q are required, but it would not miss a card that fell off the bus; %s", s, exactInstead)
		}
	}
	return nil
}

// count is how many of the selected ports must be healthy.
func (q Require) count(selected int) int {
	if q.all {
		return max(selected, 1)
	}
	return q.more + 1
}

// judge returns the node's Reason as far as ports and the selection go; empty is healthy.
//
// Each unknown port may be healthy or not: the node is healthy if enough ports are either way,
// unhealthy if too few are either way, else unknown.
func (q Require) judge(ports []Port, missing []Trouble) Reason {
	if len(missing) > 0 && (q.all || len(ports) == 0) {
		return missing[0].Reason
	}
	healthy, unknown := 0, 0
	for _, p := range ports {
		switch p.Verdict {
		case Healthy:
			healthy++
		case Unknown:
			unknown++
		}
	}
	need := q.count(len(ports))
	switch {
	case healthy >= need:
		return ""
	case healthy+unknown >= need:
		return firstReason(ports, Unknown)
	case len(ports) < need:
		return DeviceMissing
	default:
		return firstReason(ports, Unhealthy)
	}
}

func firstReason(ports []Port, v Verdict) Reason {
	for _, p := range ports {
		if p.Verdict == v {
			return p.Reason
		}
	}
	return ""
}
