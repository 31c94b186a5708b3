package harness

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
)

// Topology is what kubelet has told the API server of the driver's topology.
type Topology struct {
	// Keys are the topologyKeys of the driver in CSINode, sorted.
	Keys []string
	// Labels are those of the node under the driver's name or a subdomain of it.
	Labels map[string]string
}

// Topology returns it as it is now; an error if the driver is not registered.
func (s *Scene) Topology(ctx context.Context) (Topology, error) {
	var csiNode storagev1.CSINode
	if err := s.Get(ctx, &csiNode, "csinode", node.Name); err != nil {
		return Topology{}, err
	}
	i := slices.IndexFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == DriverName })
	if i < 0 {
		return Topology{}, fmt.Errorf("the driver is not in CSINode")
	}
	labels, err := s.driverLabels(ctx)
	return Topology{Keys: slices.Sorted(slices.Values(csiNode.Spec.Drivers[i].TopologyKeys)), Labels: labels}, err
}

// AwaitTopology waits until the driver is registered, CSINode lists exactly the keys of segments, and
// the node's labels are exactly segments.
func (s *Scene) AwaitTopology(ctx context.Context, segments map[string]string) error {
	awaited := fmt.Sprintf("the driver is registered with the topology %v", segments)
	return Eventually(ctx, Patience, awaited, func() error {
		t, err := s.Topology(ctx)
		if err != nil {
			return err
		}
		if !slices.Equal(t.Keys, slices.Sorted(maps.Keys(segments))) || !maps.Equal(t.Labels, segments) {
			return fmt.Errorf("keys %q, labels %v", t.Keys, t.Labels)
		}
		return nil
	})
}

func (s *Scene) driverLabels(ctx context.Context) (map[string]string, error) {
	var n corev1.Node
	if err := s.Get(ctx, &n, "node", node.Name); err != nil {
		return nil, err
	}
	maps.DeleteFunc(n.Labels, func(key, _ string) bool {
		prefix, _, _ := strings.Cut(key, "/")
		return prefix != DriverName && !strings.HasSuffix(prefix, "."+DriverName)
	})
	return n.Labels, nil
}

// LabelOwners are, by key, the programs that have set the node's labels, as the API server keeps track
// of it: "kubelet" is one.
func (s *Scene) LabelOwners(ctx context.Context, keys ...string) (map[string][]string, error) {
	var n corev1.Node
	if err := s.Get(ctx, &n, "node", node.Name, "--show-managed-fields"); err != nil {
		return nil, err
	}
	owners := map[string][]string{}
	for _, m := range n.ManagedFields {
		for _, key := range keys {
			if m.FieldsV1 != nil && strings.Contains(m.FieldsV1.String(), `"f:`+key+`"`) {
				owners[key] = append(owners[key], m.Manager)
			}
		}
	}
	return owners, nil
}
