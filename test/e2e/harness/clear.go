package harness

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// clear makes the node as it was before the scenario: cables in, so that every volume can be
// unmounted, then nothing deployed, the driver not registered and none of its labels left.
func (s *Scene) clear(ctx context.Context) error {
	for _, device := range []string{rdmanode.RoCE, rdmanode.InfiniBand} {
		if err := s.Hardware.Plug(device); err != nil {
			return err
		}
	}
	for _, kinds := range []string{"pods", "pvc", "pv"} {
		_, err := s.Kubectl(ctx, "delete", kinds, "--selector="+label, "--timeout="+BackOff.String())
		if err != nil {
			return err
		}
	}
	_, err := s.Kubectl(ctx, "--namespace=kube-system", "delete", "daemonset", DaemonSetName, "--ignore-not-found")
	if err != nil {
		return err
	}
	err = Eventually(ctx, Patience, "the DaemonSet's pods are gone", func() error {
		out, err := s.Kubectl(ctx, "--namespace=kube-system", "get", "pods", "--selector="+Selector, "--output=name")
		if err == nil && out != "" {
			err = fmt.Errorf("there are %s", strings.Fields(out))
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "delete", "csidriver", DriverName, "--ignore-not-found"); err != nil {
		return err
	}
	if err := s.AwaitRegistered(ctx, false); err != nil {
		return err
	}
	if err := s.removeLabels(ctx); err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "delete", "events", "--all"); err != nil {
		return err
	}
	return os.RemoveAll(s.Node.Path(PluginDir))
}

// removeLabels removes the driver's topology from the node, which kubelet never does.
func (s *Scene) removeLabels(ctx context.Context) error {
	labels, err := s.driverLabels(ctx)
	if err != nil || len(labels) == 0 {
		return err
	}
	args := []string{"label", "node", node.Name}
	for key := range labels {
		args = append(args, key+"-")
	}
	_, err = s.Kubectl(ctx, args...)
	return err
}
