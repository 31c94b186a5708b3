package node

import (
	"fmt"
	"slices"
	"strings"
)

// Has says whether the node has a feature of Kubernetes that is off by default.
func (n *Node) Has(feature string) bool { return slices.Contains(n.parts.Release.Features, feature) }

// featureGates are the API server's flags that switch the release's features on.
func (n *Node) featureGates() []string {
	var flags []string
	for _, f := range n.parts.Release.Features {
		flags = append(flags, "--feature-gates="+f+"=true")
	}
	return flags
}

// featureConfig are the lines of kubelet's configuration that do the same. The period is also that of
// the questions about storage's health, and a minute by default.
func (n *Node) featureConfig() string {
	var gates []string
	for _, f := range n.parts.Release.Features {
		gates = append(gates, f+": true")
	}
	if gates == nil {
		return ""
	}
	return fmt.Sprintf("featureGates: {%s}\nvolumeStatsAggPeriod: 3s\n", strings.Join(gates, ", "))
}
