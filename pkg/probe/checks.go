package probe

import (
	"fmt"
	"strings"
)

// Checks says which layers of a port must be in order. The zero value stands for the default:
// port, gid, netdev and verbs.
type Checks struct {
	Port, GID, Netdev, Verbs bool
	// VerbsOpen also opens the device node, which needs permission for the device.
	VerbsOpen bool
}

// ParseChecks reads a list as in "port,gid,netdev,verbs". verbs-open includes verbs.
func ParseChecks(list string) (Checks, error) {
	var c Checks
	for name := range strings.SplitSeq(list, ",") {
		switch name = strings.TrimSpace(name); name {
		case "port":
			c.Port = true
		case "gid":
			c.GID = true
		case "netdev":
			c.Netdev = true
		case "verbs":
			c.Verbs = true
		case "verbs-open":
			c.Verbs, c.VerbsOpen = true, true
		case "":
			return Checks{}, fmt.Errorf("%q: an empty name in the list; write a list of port, gid, netdev, verbs, verbs-open", list)
		default:
			return Checks{}, fmt.Errorf("%q: no check %s; write a list of port, gid, netdev, verbs, verbs-open", list, name)
		}
	}
	return c, nil
}

func (c Checks) withDefault() Checks {
	if c == (Checks{}) {
		return Checks{Port: true, GID: true, Netdev: true, Verbs: true}
	}
	return c
}
