package proxy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// TopologyMode says when the gate adds its segments to the driver's.
type TopologyMode string

const (
	// TopologyAuto adds them only for a driver that reports no topology of its own.
	TopologyAuto TopologyMode = "auto"
	// TopologyMerge adds them to the driver's, whose keys win.
	TopologyMerge TopologyMode = "merge"
	// TopologyOff adds nothing.
	TopologyOff TopologyMode = "off"
)

// TopologyConfig is what NodeGetInfo reports beyond the driver's own topology.
type TopologyConfig struct {
	Mode TopologyMode
	// Prefix of the keys; empty means the driver's own, else the driver's name.
	Prefix string
	// Segments are added as they are. A key without a prefix gets Prefix.
	Segments map[string]string
	// Health returns the newest snapshot; only its facts are used, never its verdict.
	Health func() *probe.Health
}

// topology makes the injected segments: facts about the hardware, never its health. Kubelet accepts
// no changed value, so they are frozen while the driver is registered. Safe for concurrent use.
type topology struct {
	TopologyConfig

	mu      sync.Mutex
	frozen  map[string]string // nil while not frozen
	refused map[string]bool   // keys that kubelet did not accept
}

// adds says whether the mode has anything added to a driver's own segments.
func (t *topology) adds(own map[string]string) bool {
	return t.Mode == TopologyMerge || t.Mode == TopologyAuto && len(own) == 0
}

// inject returns the segments to add for a driver of that name that reports those of its own.
func (t *topology) inject(driverName string, own map[string]string) map[string]string {
	if !t.adds(own) || driverName == "" {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	segments := t.frozen
	if segments == nil {
		segments = t.segments(driverName, own)
	}
	return without(segments, func(key string) bool { _, has := own[key]; return has || t.refused[key] })
}

// freeze holds the segments at what they are now.
func (t *topology) freeze(driverName string, own map[string]string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen = t.segments(driverName, own)
	for key, value := range t.wanted(driverName, own) {
		if err := CheckSegment(key, value); err != nil {
			klog.ErrorS(err, "Topology segment left out", "key", key, "value", value)
		}
	}
}

// grown compares the frozen segments with those of this moment.
func (t *topology) grown(driverName string, own map[string]string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.adds(own) || t.frozen == nil {
		return false
	}
	now := t.segments(driverName, own)
	more := false
	for key := range now {
		_, had := t.frozen[key]
		more = more || !had && !t.refused[key]
	}
	for key, value := range t.frozen {
		more = more && now[key] == value
	}
	return more
}

func (t *topology) thaw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen = nil
}

// refuse leaves a key out from now on. It returns false if the key is not one that is injected.
func (t *topology) refuse(driverName string, own map[string]string, key string) bool {
	if _, injected := t.inject(driverName, own)[key]; !injected {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused == nil {
		t.refused = map[string]bool{}
	}
	t.refused[key] = true
	return true
}

// segments are those of the wanted ones that kubelet can make labels of.
func (t *topology) segments(driverName string, own map[string]string) map[string]string {
	wanted := t.wanted(driverName, own)
	return without(wanted, func(key string) bool { return CheckSegment(key, wanted[key]) != nil })
}

func (t *topology) wanted(driverName string, own map[string]string) map[string]string {
	segments := map[string]string{}
	prefix := t.prefix(driverName, own)
	if prefix == "" {
		return segments
	}
	for name, value := range facts(t.Health().Ports) {
		segments[prefix+"/"+name] = value
	}
	for key, value := range t.Segments {
		if !strings.Contains(key, "/") {
			key = prefix + "/" + key
		}
		segments[key] = value
	}
	return segments
}

// prefix of the injected keys; empty if there is none that kubelet may set.
func (t *topology) prefix(driverName string, own map[string]string) string {
	if t.Prefix != "" {
		return t.Prefix
	}
	for _, key := range slices.Sorted(maps.Keys(own)) {
		if prefix, _, ok := strings.Cut(key, "/"); ok && !Reserved(prefix) {
			return prefix
		}
	}
	if Reserved(driverName) {
		return ""
	}
	return driverName
}

// facts that hold for every selected port.
func facts(ports []probe.Port) map[string]string {
	if len(ports) == 0 {
		return nil
	}
	f := map[string]string{"rdma": "true"}
	if layer := string(ports[0].LinkLayer); layer != "" && agree(ports, func(p probe.Port) string { return string(p.LinkLayer) }) {
		f["rdma-link-layer"] = layer
	}
	const defaultPrefix = "fe80000000000000" // every fabric that was not given one has it
	if fabric := ports[0].SubnetPrefix; fabric != "" && fabric != defaultPrefix && agree(ports, func(p probe.Port) string { return p.SubnetPrefix }) {
		f["rdma-fabric"] = fabric
	}
	return f
}

func agree(ports []probe.Port, value func(probe.Port) string) bool {
	return !slices.ContainsFunc(ports, func(p probe.Port) bool { return value(p) != value(ports[0]) })
}

func without(segments map[string]string, drop func(key string) bool) map[string]string {
	kept := map[string]string{}
	for key, value := range segments {
		if !drop(key) {
			kept[key] = value
		}
	}
	return kept
}

// Reserved says whether kubelet is not allowed to set labels under the prefix (the NodeRestriction
// admission plugin).
func Reserved(prefix string) bool {
	for _, domain := range []string{"kubernetes.io", "k8s.io"} {
		if prefix == domain || strings.HasSuffix(prefix, "."+domain) {
			return true
		}
	}
	return false
}

// CheckSegment says in one line why kubelet could not make a label of key and value.
func CheckSegment(key, value string) error {
	if prefix, _, ok := strings.Cut(key, "/"); ok && Reserved(prefix) {
		return fmt.Errorf("the prefix of %q is reserved for Kubernetes; use a domain of your own", key)
	}
	if errs := validation.IsQualifiedName(key); len(errs) > 0 {
		return fmt.Errorf("%q is not a label key: %s", key, errs[0])
	}
	if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
		return fmt.Errorf("%q is not a label value: %s", value, errs[0])
	}
	return nil
}
