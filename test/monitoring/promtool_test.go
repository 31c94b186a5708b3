package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program is the path of one of Debian's package prometheus. The test is skipped without.
func program(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	path, err := filepath.Abs("../../build/" + name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("there is no %s: make promtool", name)
	}
	return path
}

// promtool runs it and fails the test with what it says if it is not content.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program(t, "promtool"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// The names, types, units and HELP texts of all that the gate exports keep Prometheus's conventions, in whatever state it
// is.
func (b binaries) testMetrics(t *testing.T) {
	n := b.startNode(t)
	lint := func(t *testing.T) { promtool(t, n.mustGet("/metrics"), "check", "metrics", "--extended") }
	t.Run("healthy", lint)
	n.mustMount(1)
	n.pull()
	t.Run("closed", lint)
	n.refuse(2)
	t.Run("after a refusal", lint)
	n.mustUnmount(1)
	n.awaitMetric("csi_rdma_gate_registered 0")
	n.awaitMetric("csi_rdma_gate_registration_wanted 0")
	t.Run("deregistered", lint)
}

func TestRules(t *testing.T) {
	promtool(t, "", "check", "rules", examples+"prometheus-rules.yaml")
	promtool(t, "", "test", "rules", "testdata/rules_test.yaml")
}
