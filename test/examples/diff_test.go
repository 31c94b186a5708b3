package examples_test

import (
	"reflect"
	"regexp"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/examples/manifest"
)

var fence = regexp.MustCompile("(?ms)^( *)```(\\w+)\n(.*?)^ *```$")

// blocks are the fenced blocks of a language in a Markdown file, less the indentation of the fence.
func blocks(t *testing.T, markdown []byte, language string) [][]byte {
	t.Helper()
	var found [][]byte
	for _, m := range fence.FindAllStringSubmatch(string(markdown), -1) {
		if m[2] != language {
			continue
		}
		var b strings.Builder
		for line := range strings.Lines(m[3]) {
			b.WriteString(strings.TrimPrefix(line, m[1]))
		}
		found = append(found, []byte(b.String()))
	}
	if len(found) == 0 {
		t.Fatalf("no block of %s", language)
	}
	return found
}

// sides are what a unified diff leads from and to.
func sides(t *testing.T, diff [][]byte) (from, to string) {
	t.Helper()
	for _, block := range diff {
		for line := range strings.Lines(string(block)) {
			switch sign, text := line[:1], line[1:]; sign {
			case " ":
				from, to = from+text, to+text
			case "-":
				from += text
			case "+":
				to += text
			default:
				t.Fatalf("a line of the diff has no sign: %q", line)
			}
		}
	}
	return from, to
}

var comment = regexp.MustCompile(`(?m)^ *#.*\n| +# .*$|^\n`)

func TestTheDiffLeadsFromARegistrarToTheExample(t *testing.T) {
	from, to := sides(t, blocks(t, read(t, "diff.md"), "diff"))
	if example := comment.ReplaceAllString(string(read(t, plain)), ""); to != example {
		t.Errorf("it leads to\n%s\nand %s is\n%s", to, plain, example)
	}
	before, err := manifest.Decode[appsv1.DaemonSet]([]byte(from))
	if err != nil {
		t.Fatalf("what it begins with: %v", err)
	}
	p := before.Spec.Template.Spec
	registrar := &p.Containers[0]
	_, gate := pod(t, plain)
	for _, arg := range registrar.Args {
		if !strings.Contains(strings.Join(gate.Args, "\n"), arg) {
			t.Errorf("the registrar's argument %s is gone", arg)
		}
	}
	// The rule by which the gate takes the registrar's place: its volume moves, and nothing in the driver's container does.
	after, _ := pod(t, plain)
	driver := p.Containers[1]
	for i, m := range driver.VolumeMounts {
		if m.MountPath == "/csi" {
			driver.VolumeMounts[i].Name = "driver-socket"
		}
	}
	if !reflect.DeepEqual(driver, after.Containers[0]) {
		t.Errorf("the driver's container changes: %+v", driver)
	}
	plugin := manifest.Pod{PodSpec: p}.HostPath(registrar, "/csi/csi.sock")
	if path := manifest.Flag(gate.Args, "kubelet-registration-path", ""); plugin != path {
		t.Errorf("the registrar's socket is %s on the host, kubelet is told %s", plugin, path)
	}
}
