// Package monitoring tests what an operator alerts on and reads at night, with the real gate as a process of its own: its
// metrics, the alert rules and the dashboard of examples/monitoring, and its log. It is a module of its own because of
// Prometheus's query parser.
//
// The node is simulated (package rdmanode), kubelet and the CSI driver are stand-ins. promtool and prometheus are taken from
// PATH or from build/, where `make promtool` puts them; what needs them is skipped without.
package monitoring

import (
	"testing"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

// examples is where the files are that an operator takes.
const examples = "../../examples/monitoring/"

// binaries are built once for all tests.
type binaries struct{ gate, driver string }

func TestMonitoring(t *testing.T) {
	gate, driver := storytest.Build(t)
	b := binaries{gate, driver}
	t.Run("metrics", b.testMetrics)
	t.Run("soak", b.testSoak)
	t.Run("log", b.testLog)
	t.Run("prometheus", b.testPrometheus)
	t.Run("queries", func(t *testing.T) { testQueries(t, b.exported(t)) })
}
