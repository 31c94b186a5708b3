package harness

import (
	"os"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

const example = "../../../examples/daemonset.yaml"

func readExample(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestPatchChangesOnlyWhatTheNodeLacks(t *testing.T) {
	text := readExample(t)
	got, err := Deployment{Gate: []string{"--gate=observe"}, Driver: []string{"--no-stage"}}.patch([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	gate, driver := &got.Spec.Template.Spec.InitContainers[0], &got.Spec.Template.Spec.Containers[0]
	if gate.Image != GateImage || driver.Image != DriverImage {
		t.Errorf("images %s and %s", gate.Image, driver.Image)
	}
	if last := gate.Args[len(gate.Args)-1]; last != "--gate=observe" {
		t.Errorf("the gate's last flag is %s", last)
	}
	if want := []string{"--state-dir=" + PluginDir + "/state", "--no-stage"}; !slices.Equal(driver.Args[len(driver.Args)-2:], want) {
		t.Errorf("the driver's flags are %q", driver.Args)
	}

	// Undone, it has to be the example again.
	var want appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(text), &want); err != nil {
		t.Fatal(err)
	}
	original := want.Spec.Template.Spec
	gate.Image, driver.Image = original.InitContainers[0].Image, original.Containers[0].Image
	gate.Args = gate.Args[:len(original.InitContainers[0].Args)]
	driver.Args = driver.Args[:len(original.Containers[0].Args)]
	for _, v := range got.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			v.HostPath.Path = strings.TrimPrefix(v.HostPath.Path, hardwareDir)
		}
	}
	a, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	b, err := yaml.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if string(a) != string(b) {
		t.Errorf("got\n%s\nwant\n%s", a, b)
	}
}

func TestPatchPointsAtSimulatedHardware(t *testing.T) {
	got, err := Deployment{}.patch([]byte(readExample(t)))
	if err != nil {
		t.Fatal(err)
	}
	paths := make(map[string]string)
	for _, v := range got.Spec.Template.Spec.Volumes {
		if v.HostPath != nil {
			paths[v.Name] = v.HostPath.Path
		}
	}
	if paths["host-sys"] != hardwareDir+"/sys" || paths["host-dev"] != hardwareDir+"/dev" {
		t.Errorf("the paths of the host are %q", paths)
	}
}

func TestPatchMakesFurtherChangesLast(t *testing.T) {
	change := func(ds *appsv1.DaemonSet) { ds.Spec.Template.Spec.Containers[0].Image = "other" }
	got, err := Deployment{Change: change}.patch([]byte(readExample(t)))
	if err != nil {
		t.Fatal(err)
	}
	if image := got.Spec.Template.Spec.Containers[0].Image; image != "other" {
		t.Errorf("the driver's image is %s", image)
	}
}

func TestPatchRefusesAnExampleThatItDoesNotKnow(t *testing.T) {
	for name, change := range map[string][2]string{
		"no container gate":      {"- name: gate\n", "- name: sidecar\n"},
		"no container driver":    {"- name: driver\n", "- name: nfs\n"},
		"no volume host-sys":     {"- name: host-sys\n          hostPath", "- name: sys\n          hostPath"},
		"host-dev somewhere":     {"path: /dev\n", "path: /dev/infiniband\n"},
		"a field that is no one": {"hostNetwork: true", "hostNetworks: true"},
	} {
		t.Run(name, func(t *testing.T) {
			text := readExample(t)
			changed := strings.Replace(text, change[0], change[1], 1)
			if changed == text {
				t.Fatalf("the example does not have %q", change[0])
			}
			if _, err := (Deployment{}).patch([]byte(changed)); err == nil {
				t.Error("no error")
			}
		})
	}
}
