package scenarios

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// Topology is what the scheduler and the driver's controller are told of the node's hardware: it is
// true when the driver is registered, and constant from then on.
func Topology() []harness.Scenario {
	return []harness.Scenario{
		{Name: "topology", Play: lastingTopology},
		{Name: "collision", Play: collision},
		{Name: "modes", Play: topologyModes},
	}
}

// longest is a value of as many characters as a label can have.
var longest = "leaf-" + strings.Repeat("x", 63-len("leaf-"))

// lastingTopology tells of a card that comes late and of all that can happen to it afterwards.
func lastingTopology(s *harness.Scene) {
	segments := map[string]string{harness.DriverName + "/rail": "7", harness.DriverName + "/leaf": longest}
	s.Step("deployed before the card is there, registered with --topology-segment alone", func(ctx context.Context) error {
		if err := s.Hardware.Remove(rdmanode.InfiniBand); err != nil {
			return err
		}
		err := s.Deploy(ctx, harness.Deployment{
			// Never, so that kubelet can be asked for the topology while the hardware is not in order.
			Gate:   []string{"--deregister-policy=never", "--topology-segment=rail=7", "--topology-segment=leaf=" + longest},
			Change: selectDevices(rdmanode.InfiniBand),
		})
		if err != nil {
			return err
		}
		return s.AwaitTopology(ctx, segments)
	})
	maps.Copy(segments, map[string]string{
		harness.DriverName + "/rdma":            "true",
		harness.DriverName + "/rdma-link-layer": "infiniband",
		harness.DriverName + "/rdma-fabric":     "fec0000000000001",
	})
	var registrations string
	s.Step("the card comes, the driver is registered afresh with what it is", func(ctx context.Context) error {
		if err := s.Hardware.Insert(rdmanode.InfiniBand); err != nil {
			return err
		}
		if err := s.AwaitTopology(ctx, segments); err != nil {
			return err
		}
		var err error
		registrations, err = s.Metric(ctx, "csi_rdma_gate_registrations_total")
		s.Note("ok, registration %s: infiniband, fabric fec0000000000001", registrations)
		return err
	})
	s.Step("kubelet has set the labels, which it may not for reserved ones", func(ctx context.Context) error {
		return setByKubelet(ctx, s, slices.Sorted(maps.Keys(segments)))
	})
	// Kubelet asks for the topology when it starts, and loses the driver if it has changed.
	unchanged := func(name, reason string, change func() error) {
		s.Step(name, func(ctx context.Context) error {
			err := restartKubelet(ctx, s, func() error {
				if err := change(); err != nil {
					return err
				}
				return awaitCause(ctx, s, reason)
			})
			if err != nil {
				return err
			}
			return s.AwaitTopology(ctx, segments)
		})
	}
	unchanged("the cable is pulled while kubelet restarts: registered, with the same topology", "PhysLinkDown", func() error {
		return s.Hardware.Pull(rdmanode.InfiniBand)
	})
	unchanged("the port changes to Ethernet while kubelet restarts: the same", "RoCEv2GIDMissing", func() error {
		return errors.Join(s.Hardware.SetLinkLayer(rdmanode.InfiniBand, "Ethernet"), s.Hardware.Plug(rdmanode.InfiniBand))
	})
	unchanged("the card disappears while kubelet restarts: the same", "DeviceMissing", func() error {
		return s.Hardware.Remove(rdmanode.InfiniBand)
	})
	s.Step("the card is back, which takes no registration", func(ctx context.Context) error {
		if err := s.Hardware.Insert(rdmanode.InfiniBand); err != nil {
			return err
		}
		if err := s.AwaitGate(ctx, true); err != nil {
			return err
		}
		// After each probe the gate asks itself whether there is more to tell; if so, it says so at once.
		const probes = `csi_rdma_gate_probes_total{verdict="healthy"}`
		n, err := metric(ctx, s, probes)
		if err != nil {
			return err
		}
		if _, err := awaitMetric(ctx, s, probes, n+3); err != nil {
			return err
		}
		n, err = timesInLog(ctx, s, "gate", "The hardware gives more topology than was registered")
		if err == nil && n != 1 {
			err = fmt.Errorf("%d times there was more topology than was registered, not once", n)
		}
		return errors.Join(err,
			wantMetric(ctx, s, "csi_rdma_gate_registrations_total", registrations),
			wantMetric(ctx, s, "csi_rdma_gate_registration_failures_total", "0"),
			s.AwaitTopology(ctx, segments),
		)
	})
}

// selectDevices replaces the example's --rdma-device; given once more, it would select further ones.
func selectDevices(devices ...string) func(*appsv1.DaemonSet) {
	return func(ds *appsv1.DaemonSet) {
		gate := &ds.Spec.Template.Spec.InitContainers[0]
		gate.Args = slices.DeleteFunc(gate.Args, func(arg string) bool { return strings.HasPrefix(arg, "--rdma-device=") })
		gate.Args = append(gate.Args, "--rdma-device="+strings.Join(devices, ","))
	}
}

// setByKubelet sees that the labels were set by kubelet, and that the API server lets its user set no
// labels in Kubernetes' own name.
func setByKubelet(ctx context.Context, s *harness.Scene, keys []string) error {
	owners, err := s.LabelOwners(ctx, keys...)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if !slices.Equal(owners[key], []string{"kubelet"}) {
			return fmt.Errorf("the label %s was set by %q", key, owners[key])
		}
	}
	const reserved = "node-restriction.kubernetes.io/rdma"
	_, err = s.Kubectl(ctx, "--as=system:node:"+node.Name, "--as-group=system:nodes", "label", "node", node.Name, reserved+"=true")
	if err == nil || !strings.Contains(err.Error(), "is not allowed to modify labels: "+reserved) {
		return fmt.Errorf("the NodeRestriction admission plugin does not work: %w", err)
	}
	s.Note("ok, %d labels; NodeRestriction is in force", len(keys))
	return nil
}

// restartKubelet restarts kubelet, has something happen while it is away, and waits until it has
// registered the driver.
func restartKubelet(ctx context.Context, s *harness.Scene, meanwhile func() error) error {
	_, err := awaitAgain(ctx, s, func() error {
		s.Node.StopKubelet()
		return errors.Join(meanwhile(), s.Node.StartKubelet()) // without kubelet nothing could be cleaned up
	})
	return err
}

// awaitCause waits until the gate is closed for the reason.
func awaitCause(ctx context.Context, s *harness.Scene, reason string) error {
	return harness.Eventually(ctx, harness.Patience, "the gate is closed: "+reason, func() error {
		status, err := s.GateStatus(ctx)
		if err == nil && !slices.ContainsFunc(status.Gate.Cause, func(cause string) bool { return strings.Contains(cause, reason) }) {
			err = fmt.Errorf("open: %t, cause: %q", status.Gate.Open, status.Gate.Cause)
		}
		return err
	})
}

// collision tells of a node that had another network card once.
func collision(s *harness.Scene) {
	const key = harness.DriverName + "/rdma-link-layer"
	others := map[string]string{harness.DriverName + "/rdma": "true"}
	all := maps.Clone(others)
	all[key] = "ethernet"

	s.Step("the node is labelled as InfiniBand, and is Ethernet", func(ctx context.Context) error {
		_, err := s.Kubectl(ctx, "label", "node", node.Name, key+"=infiniband")
		return err
	})
	s.Step("kubelet refuses the key, the driver is registered without", func(ctx context.Context) error {
		if err := s.Deploy(ctx, harness.Deployment{}); err != nil {
			return err
		}
		if err := refusedByKubelet(s, key, "ethernet", "infiniband"); err != nil {
			return err
		}
		if err := withoutKey(ctx, s, key, others); err != nil {
			return err
		}
		took, err := sinceRefusal(ctx, s)
		s.Note("ok, %.1f s after kubelet had refused it", took.Seconds())
		return err
	})
	s.Step("the command in the gate's log is run, and the gate restarted: the key is accepted", func(ctx context.Context) error {
		command, err := remedy(ctx, s)
		if err != nil {
			return err
		}
		if _, err := s.Kubectl(ctx, strings.Fields(command)[1:]...); err != nil {
			return err
		}
		if err := replaceDriverPod(ctx, s); err != nil {
			return err
		}
		if err := s.AwaitTopology(ctx, all); err != nil {
			return err
		}
		s.Note("ok: %s", command)
		return wantMetric(ctx, s, "csi_rdma_gate_topology_refused_keys", "0")
	})
	s.Step("somebody changes the label while kubelet restarts: registered without the key", func(ctx context.Context) error {
		err := restartKubelet(ctx, s, func() error {
			_, err := s.Kubectl(ctx, "label", "--overwrite", "node", node.Name, key+"=infiniband")
			return err
		})
		if err != nil {
			return err
		}
		return withoutKey(ctx, s, key, others)
	})
}

// refusedByKubelet sees that kubelet has failed a registration for the key, for the reason that the
// gate looks for in its error.
func refusedByKubelet(s *harness.Scene, key, reported, existing string) error {
	text := fmt.Sprintf("detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, reported, key, existing)
	if log := strings.ReplaceAll(s.Node.LogTail("kubelet", 2000), `\"`, `"`); !strings.Contains(log, text) {
		return fmt.Errorf("kubelet's log does not say: %s", text)
	}
	return nil
}

// withoutKey waits until the driver is registered with the other segments while the label with the
// refused key is as it was, and sees that the gate tells of it.
func withoutKey(ctx context.Context, s *harness.Scene, key string, others map[string]string) error {
	labels := maps.Clone(others)
	labels[key] = "infiniband"
	err := harness.Eventually(ctx, harness.Patience, "the driver is registered without "+key, func() error {
		t, err := s.Topology(ctx)
		if err == nil && (!slices.Equal(t.Keys, slices.Sorted(maps.Keys(others))) || !maps.Equal(t.Labels, labels)) {
			err = fmt.Errorf("keys %q, labels %v", t.Keys, t.Labels)
		}
		return err
	})
	if err != nil {
		return err
	}
	status, err := s.GateStatus(ctx)
	if err == nil && !slices.Equal(status.Registration.RefusedKeys, []string{key}) {
		err = fmt.Errorf("/status says that refused keys are %q", status.Registration.RefusedKeys)
	}
	return errors.Join(err, wantMetric(ctx, s, "csi_rdma_gate_topology_refused_keys", "1"))
}

// sinceRefusal is the time, by the gate's log, from kubelet's first refusal to the registration.
func sinceRefusal(ctx context.Context, s *harness.Scene) (time.Duration, error) {
	log, err := s.Log(ctx, "gate")
	if err != nil {
		return 0, err
	}
	at := func(message string) time.Time {
		for line := range strings.Lines(log) {
			if strings.Contains(line, message) {
				const header = "0102 15:04:05.000000" // klog's, after the letter for the severity
				t, _ := time.Parse(header, line[1:1+len(header)])
				return t
			}
		}
		return time.Time{}
	}
	refused, registered := at("Kubelet did not register the driver"), at(kubeletsWord)
	if refused.IsZero() || registered.Before(refused) {
		return 0, fmt.Errorf("the gate's log does not tell of a refusal and then a registration:\n%s", log)
	}
	return registered.Sub(refused), nil
}

// remedy is the command in the gate's log by which the gate's value gets the better of the label.
func remedy(ctx context.Context, s *harness.Scene) (string, error) {
	log, err := s.Log(ctx, "gate")
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(`remedy="(kubectl [^"]*)"`).FindStringSubmatch(log)
	if found == nil {
		return "", fmt.Errorf("the gate's log names no command:\n%s", log)
	}
	return found[1], nil
}

// replaceDriverPod deletes the DaemonSet's pod and waits for the next one.
func replaceDriverPod(ctx context.Context, s *harness.Scene) error {
	pod, err := s.DriverPod(ctx)
	if err != nil {
		return err
	}
	if _, err := s.Kubectl(ctx, "--namespace=kube-system", "delete", "pod", pod); err != nil {
		return err
	}
	return s.AwaitDaemonSet(ctx)
}

func wantMetric(ctx context.Context, s *harness.Scene, name, want string) error {
	value, err := s.Metric(ctx, name)
	if err == nil && value != want {
		err = fmt.Errorf("%s is %s, not %s", name, value, want)
	}
	return err
}

// topologyModes are those of --topology. Kubelet never removes a label, so each adds to the one before.
func topologyModes(s *harness.Scene) {
	s.Step("off: nothing is added", func(ctx context.Context) error {
		if err := s.Deploy(ctx, harness.Deployment{Gate: []string{"--topology=off"}}); err != nil {
			return err
		}
		return s.AwaitTopology(ctx, nil)
	})
	const prefix = "topology." + harness.DriverName
	own := []string{"--topology=" + prefix + "/zone=z1"}
	segments := map[string]string{prefix + "/zone": "z1"}
	s.Step("auto, and the driver has topology of its own: nothing is added", func(ctx context.Context) error {
		return redeploy(ctx, s, harness.Deployment{Driver: own}, segments)
	})
	s.Step("merge: added under the driver's prefix, and its own keys win", func(ctx context.Context) error {
		maps.Copy(segments, map[string]string{
			prefix + "/rdma": "true", prefix + "/rdma-link-layer": "ethernet", prefix + "/rail": "7",
		})
		gate := []string{"--topology=merge", "--topology-segment=rail=7", "--topology-segment=zone=z2"}
		if err := redeploy(ctx, s, harness.Deployment{Driver: own, Gate: gate}, segments); err != nil {
			return err
		}
		// A zone of the gate's would have been refused once, since the node has the driver's.
		return wantMetric(ctx, s, "csi_rdma_gate_registration_failures_total", "0")
	})
}

// redeploy changes what is deployed, and waits until kubelet has the topology.
func redeploy(ctx context.Context, s *harness.Scene, d harness.Deployment, segments map[string]string) error {
	if err := s.ApplyDaemonSet(ctx, d); err != nil {
		return err
	}
	if err := s.AwaitDaemonSet(ctx); err != nil {
		return err
	}
	return s.AwaitTopology(ctx, segments)
}
