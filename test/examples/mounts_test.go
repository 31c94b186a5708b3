package examples_test

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/examples/manifest"
)

// need is a mount that some flags want, as they are set.
type need struct {
	path, host string // host is empty for an emptyDir
	writable   bool
	sees       bool // the mounts that others make below it
}

// needs derives the gate's mounts from its flags.
func needs(args []string) []need {
	flag := func(name, fallback string) string { return manifest.Flag(args, name, fallback) }
	kubelet, _, _ := strings.Cut(flag("kubelet-registration-path", ""), "/plugins/")
	kubelet = flag("kubelet-dir", kubelet)
	list := []need{
		{path: filepath.Dir(flag("csi-address", "/run/csi/socket"))},
		{path: filepath.Dir(flag("gate-address", "")), host: filepath.Dir(flag("kubelet-registration-path", "")), writable: true},
		{path: flag("plugin-registration-path", "/registration"), host: kubelet + "/plugins_registry", writable: true},
		{path: kubelet, host: kubelet, sees: true},
		{path: filepath.Join(flag("host-root", "/"), "sys"), host: "/sys"},
	}
	if strings.Contains(flag("rdma-checks", "port,gid,netdev,verbs"), "verbs") {
		list = append(list, need{path: filepath.Join(flag("host-root", "/"), "dev"), host: "/dev"})
	}
	return list
}

// Each mount is there because a flag needs it, with the least access that does, and none is missing.
func TestTheGateHasTheMountsThatItsFlagsNeed(t *testing.T) {
	for _, name := range daemonSets() {
		p, gate := pod(t, name)
		var used []string
		for _, n := range needs(gate.Args) {
			m := manifest.MountOf(gate, n.path)
			if m == nil || m.MountPath != n.path {
				t.Errorf("%s: nothing is mounted at %s", name, n.path)
				continue
			}
			used = append(used, m.MountPath)
			volume, err := p.Volume(m.Name)
			switch {
			case err != nil:
				t.Errorf("%s: %v", name, err)
			case n.host == "" && volume.EmptyDir == nil:
				t.Errorf("%s: %s is no emptyDir, so others can go around the gate", name, n.path)
			case n.host != p.HostPath(gate, n.path):
				t.Errorf("%s: %s is %q on the host, not %q", name, n.path, p.HostPath(gate, n.path), n.host)
			}
			if m.ReadOnly == n.writable {
				t.Errorf("%s: %s: read-only is %t", name, n.path, m.ReadOnly)
			}
			if sees := m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationHostToContainer; sees != n.sees {
				t.Errorf("%s: %s: propagation is %v", name, n.path, m.MountPropagation)
			}
		}
		if len(used) != len(gate.VolumeMounts) {
			t.Errorf("%s: of %d mounts only %v are needed", name, len(gate.VolumeMounts), used)
		}
	}
}

// Kubelet counts both ends against one budget.
func TestCallsInFlightHaveTimeToEnd(t *testing.T) {
	const shutdownTimeout, driversEnd = 25, 30
	for _, name := range daemonSets() {
		if p, _ := pod(t, name); p.TerminationGracePeriodSeconds == nil || *p.TerminationGracePeriodSeconds < shutdownTimeout+driversEnd {
			t.Errorf("%s: %v s from SIGTERM to SIGKILL", name, p.TerminationGracePeriodSeconds)
		}
	}
}
