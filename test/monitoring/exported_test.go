package monitoring

import (
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// exported are the metrics that the gate exports, as queries name them, each with its labels.
type exported map[string]labelSet

// exported scrapes a closed gate that has refused a volume, and one that only observes and would have: together they show
// every metric.
func (b binaries) exported(t *testing.T) exported {
	t.Helper()
	all := exported{}
	for _, mode := range []string{"enforce", "observe"} {
		n := b.startNode(t, "--gate="+mode, "--deregister-policy=never")
		n.pull()
		if mode == "enforce" {
			n.refuse(1)
		} else {
			n.mustMount(1)
			n.mustUnmount(1)
		}
		all.add(t, n.mustGet("/metrics"))
	}
	return all
}

func (e exported) add(t *testing.T, metrics string) {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(metrics))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range families {
		labels := labelSet{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels.add(l.GetName())
			}
		}
		switch f.GetType() {
		case dto.MetricType_HISTOGRAM:
			e[name+"_bucket"] = labels.and("le")
			e[name+"_sum"], e[name+"_count"] = labels, labels
		case dto.MetricType_SUMMARY: // of which the gate's have no quantiles
			e[name+"_sum"], e[name+"_count"] = labels, labels
		default:
			e[name] = labels
		}
	}
}
