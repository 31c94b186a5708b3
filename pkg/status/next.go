package status

import (
	"fmt"
	"slices"
	"strings"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/registration"
)

// troubleshooting has a heading for each Reason. Its anchor is the Reason in lower case.
const troubleshooting = "https://github.com/csi-rdma-gate/csi-rdma-gate/blob/main/docs/troubleshooting.md#"

// step is what to do next about one thing that is not as it should be.
type step struct {
	// About is a Reason, or else what the step is about.
	About         string `json:"about"`
	Do            string `json:"do"`
	Documentation string `json:"documentation,omitempty"`
}

// next has a step for each Reason for which the gate is closed or a port is in trouble, and for what the operator or kubelet
// has to undo. It is never nil.
func next(h *probe.Health, reg registration.Stats, node string) []step {
	steps := []step{}
	if h.Override != nil {
		steps = append(steps, step{About: "Override", Do: "The override file decides, not the probe. Remove it when its reason is over"})
	}
	if h.OverrideIgnored != "" {
		steps = append(steps, step{About: "Override", Do: "The override file does not count: " + h.OverrideIgnored})
	}
	seen := map[probe.Reason]bool{}
	for _, t := range slices.Concat(h.Cause, h.Troubles()) {
		if !seen[t.Reason] {
			seen[t.Reason] = true
			steps = append(steps, step{string(t.Reason), t.Reason.Advice(), troubleshooting + strings.ToLower(string(t.Reason))})
		}
	}
	for _, key := range reg.RefusedKeys {
		steps = append(steps, step{About: key, Do: fmt.Sprintf("The node has this label with another value. If that is stale: "+
			"kubectl label node %s %s-, then restart this pod", node, key)})
	}
	return steps
}
