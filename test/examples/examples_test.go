// Package examples_test holds the manifests in examples/ to what they claim.
package examples_test

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/examples/manifest"
)

const (
	plain     = "daemonset.yaml"
	verbsOpen = "daemonset-verbs-open.yaml"
	before129 = "daemonset-before-1.29.yaml"
)

// daemonSets are the examples with a gate in them.
func daemonSets() []string { return []string{plain, verbsOpen, before129} }

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func daemonSet(t *testing.T, name string) *appsv1.DaemonSet {
	t.Helper()
	ds, err := manifest.Decode[appsv1.DaemonSet](read(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return ds
}

func pod(t *testing.T, name string) (manifest.Pod, *corev1.Container) {
	t.Helper()
	p := manifest.Pod{PodSpec: daemonSet(t, name).Spec.Template.Spec}
	gate, err := p.Gate()
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return p, gate
}

func TestEveryExampleHasTheFieldsOfItsKind(t *testing.T) {
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		text := read(t, filepath.Base(file))
		kind, err := manifest.Decode[metav1.TypeMeta](firstLines(text, "apiVersion:", "kind:"))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		switch *kind {
		case metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}:
			_, err = manifest.Decode[appsv1.DaemonSet](text)
		case metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver"}:
			_, err = manifest.Decode[storagev1.CSIDriver](text)
		default:
			t.Errorf("%s: nobody checks a %s of %s", file, kind.Kind, kind.APIVersion)
		}
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// firstLines are the first lines that begin with each of the words.
func firstLines(text []byte, words ...string) []byte {
	var found []string
	for _, word := range words {
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, word) {
				found = append(found, line)
				break
			}
		}
	}
	return []byte(strings.Join(found, ""))
}

func TestTheGateHasNoMorePowerThanItNeeds(t *testing.T) {
	root, no, yes := int64(0), false, true
	restricted := &corev1.SecurityContext{
		RunAsUser: &root, RunAsGroup: &root,
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		AllowPrivilegeEscalation: &no,
		ReadOnlyRootFilesystem:   &yes,
		SeccompProfile:           &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	privileged := &corev1.SecurityContext{RunAsUser: &root, RunAsGroup: &root, Privileged: &yes, ReadOnlyRootFilesystem: &yes}
	for name, want := range map[string]*corev1.SecurityContext{plain: restricted, before129: restricted, verbsOpen: privileged} {
		p, gate := pod(t, name)
		if !reflect.DeepEqual(gate.SecurityContext, want) {
			t.Errorf("%s: security context %+v", name, gate.SecurityContext)
		}
		if p.AutomountServiceAccountToken == nil || *p.AutomountServiceAccountToken || p.ServiceAccountName != "" {
			t.Errorf("%s: the pod gets a token or an account", name)
		}
	}
}

// What the failure that the gate is for began with: a taint that evicts the pod.
func TestNoTaintEvictsThePod(t *testing.T) {
	for _, name := range daemonSets() {
		p, _ := pod(t, name)
		taint := &corev1.Taint{Key: "operator.example.com/upgrading", Value: "card", Effect: corev1.TaintEffectNoExecute}
		tolerated := false
		for _, toleration := range p.Tolerations {
			tolerated = tolerated || toleration.TolerationSeconds == nil && tolerates(toleration, taint)
		}
		if !tolerated || p.PriorityClassName != "system-node-critical" {
			t.Errorf("%s: the pod can be evicted: tolerations %v, priority %q", name, p.Tolerations, p.PriorityClassName)
		}
	}
}

func tolerates(t corev1.Toleration, taint *corev1.Taint) bool {
	return (t.Effect == "" || t.Effect == taint.Effect) && (t.Key == "" || t.Key == taint.Key) && t.Operator == corev1.TolerationOpExists
}

// The variants repeat daemonset.yaml, and a change to one of them must not be forgotten in the others.
func TestVariantsDifferOnlyInWhatTheySay(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	for name, edit := range map[string]func(*corev1.PodSpec){
		before129: func(p *corev1.PodSpec) {
			gate := p.InitContainers[0]
			gate.RestartPolicy = nil
			p.InitContainers, p.Containers = nil, append([]corev1.Container{gate}, p.Containers...)
		},
		verbsOpen: func(p *corev1.PodSpec) {
			gate := &p.InitContainers[0]
			last := len(gate.Args) - 1
			gate.Args = append(gate.Args[:last:last], "--rdma-checks=port,gid,netdev,verbs-open", gate.Args[last])
			_, privileged := pod(t, verbsOpen) // that it is, is another test's business
			gate.SecurityContext = privileged.SecurityContext
		},
	} {
		want := daemonSet(t, plain)
		if p := want.Spec.Template.Spec; len(p.InitContainers) != 1 || !reflect.DeepEqual(p.InitContainers[0].RestartPolicy, &always) {
			t.Fatalf("%s: the gate is no native sidecar", plain)
		}
		edit(&want.Spec.Template.Spec)
		if got := daemonSet(t, name); !reflect.DeepEqual(got, want) {
			t.Errorf("%s differs from %s in more than it says:\n got %+v\nwant %+v", name, plain, got, want)
		}
	}
}

// The file that the resource is asked for in is text, so that is decoded too.
func TestTheDevicePluginsVariantOnlyAddsTheResource(t *testing.T) {
	_, gate := pod(t, plain)
	fragments := blocks(t, read(t, "device-plugin-and-taints.md"), "yaml")
	if len(fragments) != 2 {
		t.Fatalf("%d blocks of YAML", len(fragments))
	}
	spec, err := manifest.Decode[corev1.PodSpec](fragments[0])
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := pod(t, plain); !reflect.DeepEqual(spec.Tolerations, p.Tolerations) {
		t.Errorf("tolerations %v are not those of %s", spec.Tolerations, plain)
	}
	asking, err := manifest.Decode[corev1.Container](fragments[1])
	if err != nil {
		t.Fatal(err)
	}
	if n := asking.Resources.Limits["rdma/hca"]; n.Value() != 1 {
		t.Errorf("asks for %s of rdma/hca", n.String())
	}
	delete(asking.Resources.Limits, "rdma/hca")
	if asking.Name != gate.Name || !reflect.DeepEqual(asking.Resources, gate.Resources) {
		t.Errorf("the rest is not that of %s: %+v", plain, asking)
	}
}
