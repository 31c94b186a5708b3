package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
)

// Kubectl runs kubectl as an administrator and returns what it prints.
func (s *Scene) Kubectl(ctx context.Context, args ...string) (string, error) {
	return s.Node.Kubectl(ctx, "", args...)
}

// Apply applies objects: a string is a manifest in YAML, anything else is an API object.
func (s *Scene) Apply(ctx context.Context, objects ...any) error {
	for _, o := range objects {
		text, ok := o.(string)
		if !ok {
			b, err := json.Marshal(o)
			if err != nil {
				return err
			}
			text = string(b)
		}
		if _, err := s.Node.Kubectl(ctx, text, "apply", "--filename=-"); err != nil {
			return err
		}
	}
	return nil
}

// Get is `kubectl get ARGS -o json` into an API object.
func (s *Scene) Get(ctx context.Context, object any, args ...string) error {
	out, err := s.Kubectl(ctx, slices.Concat([]string{"get", "--output=json"}, args)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(out), object)
}

// Registered says whether kubelet has the driver registered, as the node's CSINode tells everybody.
func (s *Scene) Registered(ctx context.Context) (bool, error) {
	var csiNode storagev1.CSINode
	if err := s.Get(ctx, &csiNode, "csinode", node.Name); err != nil {
		return false, err
	}
	return slices.ContainsFunc(csiNode.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == DriverName }), nil
}

// AwaitRegistered waits until the driver is registered, or is not.
func (s *Scene) AwaitRegistered(ctx context.Context, want bool) error {
	awaited := "the driver is in CSINode"
	if !want {
		awaited = "the driver is not in CSINode"
	}
	return Eventually(ctx, Patience, awaited, func() error {
		registered, err := s.Registered(ctx)
		if err == nil && registered != want {
			err = fmt.Errorf("registered: %t", registered)
		}
		return err
	})
}

// Events are those of an object in the namespace default, with the reason, or any reason if it is
// empty.
func (s *Scene) Events(ctx context.Context, object, reason string) ([]corev1.Event, error) {
	selector := "involvedObject.name=" + object
	if reason != "" {
		selector += ",reason=" + reason
	}
	var events corev1.EventList
	err := s.Get(ctx, &events, "events", "--field-selector="+selector)
	return events.Items, err
}

// GateStatus is what the gate says of itself at /status.
type GateStatus struct {
	Gate struct {
		Open  bool     `json:"open"`
		Cause []string `json:"cause"`
	} `json:"gate"`
	Probe struct {
		Message string `json:"message"`
	} `json:"probe"`
	Next []struct {
		About         string `json:"about"`
		Do            string `json:"do"`
		Documentation string `json:"documentation"`
	} `json:"next"`
	Registration struct {
		Registered  bool     `json:"registered"`
		Wanted      bool     `json:"wanted"`
		Obstacle    string   `json:"obstacle"`
		Sustained   bool     `json:"sustainedTrouble"`
		Volumes     int      `json:"volumes"`
		RefusedKeys []string `json:"refusedTopologyKeys"`
	} `json:"registration"`
	Topology map[string]string `json:"topology"`
}

// GateStatus asks the gate.
func (s *Scene) GateStatus(ctx context.Context) (GateStatus, error) {
	var status GateStatus
	text, err := s.Node.Fetch(ctx, "http://"+gateHTTP+"/status")
	if err != nil {
		return status, err
	}
	return status, json.Unmarshal([]byte(text), &status)
}

// Metric is the value of a metric of the gate's, named with its labels as in the text format.
func (s *Scene) Metric(ctx context.Context, name string) (string, error) {
	text, err := s.Node.Fetch(ctx, "http://"+gateHTTP+"/metrics")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("the gate has no metric %s", name)
}

// AwaitGate waits until the gate is open, or closed.
func (s *Scene) AwaitGate(ctx context.Context, open bool) error {
	return Eventually(ctx, Patience, fmt.Sprintf("the gate is open: %t", open), func() error {
		status, err := s.GateStatus(ctx)
		if err == nil && status.Gate.Open != open {
			err = fmt.Errorf("open: %t", status.Gate.Open)
		}
		return err
	})
}
