package registration

import (
	"fmt"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// Policy says when trouble that lasts ends the registration.
type Policy string

const (
	// Drained deregisters once no volume of the driver is left on the node: kubelet cannot
	// unmount through a driver that it does not know.
	Drained Policy = "drained"
	// Always deregisters whatever is mounted.
	Always Policy = "always"
	// Never keeps the driver registered.
	Never Policy = "never"
)

// ParsePolicy reads a value of --deregister-policy.
func ParsePolicy(s string) (Policy, error) {
	switch p := Policy(s); p {
	case Drained, Always, Never:
		return p, nil
	}
	return "", fmt.Errorf("%q is no policy; write drained, always or never", s)
}

// situation is all on which the registration depends.
type situation struct {
	observe bool
	policy  Policy
	// sustained: the trouble has lasted, see sustain.
	sustained bool
	volumes   int
}

// registered says whether kubelet should know the driver.
func (s situation) registered() bool {
	return s.observe || s.policy == Never || !s.sustained || (s.policy == Drained && s.volumes > 0)
}

// sustain says whether trouble has lasted long enough to count, from whether it had so far and
// the newest snapshot. first: no snapshot so far has had a verdict; then the first one decides.
func sustain(sustained, first bool, h *probe.Health, threshold int) bool {
	switch {
	case h.Open:
		return false
	case h.Override != nil: // the operator's word is no failure
		return sustained
	case first && h.Decided && h.UnhealthyTicks > 0:
		return true
	default:
		return sustained || h.UnhealthyTicks >= threshold
	}
}
