// Package csisanity runs csi-sanity, the conformance suite for CSI drivers, through the gate.
//
// What is real: the gate, a process of the built binary; csi-sanity, likewise; every call between them. What is fake:
// the drivers under the gate (test/driver, whose volumes are directories, and the mock driver of Kubernetes' own
// end-to-end tests, which mounts nothing) and the RDMA hardware, a tree of files under --host-root. Nobody plays
// kubelet: csi-sanity calls the gate as kubelet would.
package csisanity

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/onsi/ginkgo/v2/types"
)

// needNewMount are the specs of csi-sanity that stage or publish a volume: all that may fail while the gate is closed.
var needNewMount = []string{
	"Node Service NodeExpandVolume should work if node-expand is called after node-publish",
	"Node Service NodeGetVolumeStats should fail when volume does not exist on the specified path",
	"Node Service NodeUnpublishVolume should remove target path",
	"Node Service should be idempotent",
	"Node Service should work",
}

// notForMock are the specs that the mock driver fails with nobody in front of it: it advertises volume health and
// volume modification and implements neither. All belong to the controller, whose calls never reach a gate.
var notForMock = []string{
	"Controller Service [Controller Server] CreateVolume should not create volume with an invalid volume attribute class",
	"ControllerGetVolumeHealth [Controller Server] should fail when no volume id is provided",
	"ControllerGetVolumeHealth [Controller Server] should return health for a valid volume",
	"ModifyVolume [Controller Server] should fail if no volume id is given",
	"ModifyVolume [Controller Server] should fail if specified mutable parameters are not supported by the volume",
	"ModifyVolume [Controller Server] should fail if volume does not exist",
	"ModifyVolume [Controller Server] should fail to modify a volume created with a volume attribute class if new mutable parameters are not supported by volume",
}

// driver is one to put under the gate.
type driver struct {
	program  string
	name     string // what it answers to GetPluginInfo
	stateful bool   // whether it wants a directory for its volumes
	without  []string
}

func TestSanity(t *testing.T) {
	programs := build(t)
	for _, d := range []driver{
		{program: "driver", name: "nfs.example.com", stateful: true},
		{program: "mock", name: "io.kubernetes.storage.mock", without: notForMock},
	} {
		t.Run(d.program, func(t *testing.T) {
			var direct map[string]types.SpecReport
			ok := t.Run("direct", func(t *testing.T) {
				n := newNode(t, healthyPort)
				n.startDriver(t, programs, d)
				direct = n.sanity(t, programs, n.driverSocket, d.without)
				for name, spec := range direct {
					if spec.Failed() {
						t.Errorf("%s: %s", name, spec.Failure.Message)
					}
				}
				for _, name := range needNewMount {
					if direct[name].State != types.SpecStatePassed {
						t.Errorf("%s: %s, must pass here to mean something behind the gate", name, direct[name].State)
					}
				}
			})
			if !ok {
				t.Fatal("nothing to compare with")
			}
			for _, topology := range []string{"auto", "off"} {
				t.Run("healthy/topology="+topology, func(t *testing.T) {
					n := newNode(t, healthyPort)
					n.startDriver(t, programs, d)
					n.startGate(t, programs, d, topology)
					n.waitForRegistration(t, d)
					checkTopology(t, n, d, topology)
					gated := n.sanity(t, programs, n.gateSocket, d.without)
					compare(t, direct, gated, nil)
				})
				t.Run("unhealthy/topology="+topology, func(t *testing.T) {
					n := newNode(t, unpluggedPort)
					n.startDriver(t, programs, d)
					n.startGate(t, programs, d, topology)
					n.waitForRefusal(t)
					checkTopology(t, n, d, topology)
					gated := n.sanity(t, programs, n.gateSocket, d.without)
					compare(t, direct, gated, needNewMount)
				})
			}
		})
	}
}

// compare expects every spec to end through the gate as it did directly, those in refused excepted: each must fail, and
// for nothing but the gate's refusal.
func compare(t *testing.T, direct, gated map[string]types.SpecReport, refused []string) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(gated)) {
		if _, ok := direct[name]; !ok {
			t.Errorf("%s: ran through the gate only", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(direct)) {
		want, got := direct[name], gated[name]
		switch {
		case slices.Contains(refused, name):
			if !isRefusal(got) {
				t.Errorf("%s: %s, want failed by the gate's refusal alone\n%s", name, got.State, failures(got))
			}
		case got.State != want.State:
			t.Errorf("%s: %s directly, %s through the gate\n%s", name, want.State, got.State, failures(got))
		}
	}
}

// isRefusal says whether the spec failed once, by FailedPrecondition with the reason that newNode's unplugged port has.
// A second failure would be csi-sanity's clean-up after the first.
func isRefusal(spec types.SpecReport) bool {
	message := spec.Failure.Message
	return spec.State == types.SpecStateFailed && len(spec.AdditionalFailures) == 0 &&
		strings.Contains(message, "rpc error: code = FailedPrecondition desc = RDMA not usable on node "+nodeName+" since ") &&
		strings.Contains(message, ": mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling); ")
}

func failures(spec types.SpecReport) string {
	text := spec.Failure.Message
	for _, f := range spec.AdditionalFailures {
		text += "\n" + f.Failure.Message
	}
	return text
}

// checkTopology makes sure that the matrix is what it says: the gate adds its segments or does not.
func checkTopology(t *testing.T, n *node, d driver, topology string) {
	t.Helper()
	want := map[string]string{}
	if topology == "auto" {
		want[d.name+"/rdma"] = "true"
		want[d.name+"/rdma-link-layer"] = "infiniband"
		want[d.name+"/rdma-fabric"] = subnetPrefix
	}
	if got := n.segments(t); !maps.Equal(got, want) {
		t.Errorf("NodeGetInfo reports the segments %v, want %v", got, want)
	}
}
