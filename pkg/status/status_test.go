package status

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/proxy"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/registration"
)

func sources() Sources {
	h := &probe.Health{
		Result: probe.Result{Verdict: probe.Unhealthy, Reason: probe.PhysLinkDown,
			Ports: []probe.Port{
				{Device: "mlx5_0", Number: 1, Verdict: probe.Unhealthy, Reason: probe.PhysLinkDown, Detail: "state 1: DOWN, phys_state 2: Polling"},
				{Device: "mlx5_1", Number: 2, Verdict: probe.Healthy},
			},
			NodeTroubles: []probe.Trouble{
				{Subject: "nvme_rdma", Reason: probe.ModuleMissing, Detail: "one"},
				{Subject: "nvme_rdma", Reason: probe.ModuleMissing, Detail: "two"},
			},
		},
		Since:     time.Date(2026, 11, 30, 17, 58, 3, 0, time.UTC),
		Cause:     []probe.Trouble{{Subject: "mlx5_0/1", Reason: probe.PhysLinkDown, Detail: "state 1: DOWN, phys_state 2: Polling"}},
		Probes:    [3]uint64{probe.Healthy: 40, probe.Unhealthy: 2},
		ProbeTime: 21 * time.Millisecond,
		Changes:   2,
	}
	return Sources{
		Version: "v1.2.3",
		Health:  func() *probe.Health { return h },
		Calls: func() proxy.Stats {
			return proxy.Stats{InFlight: 1, Done: 3, Unfinished: 2, Refusals: map[proxy.Refusal]uint64{
				{Method: "NodeStageVolume", Code: codes.FailedPrecondition, Reason: "PhysLinkDown"}:      7,
				{Method: "NodeStageVolume", Code: codes.Unavailable, Reason: "Override", Observed: true}: 1,
			}}
		},
		Serving: func() bool { return true },
		Registration: func() registration.Stats {
			return registration.Stats{Registered: true, Confirmed: true, Wanted: true, Registrations: 2, Deregistrations: 1, Refusals: 1, RefusedKeys: []string{"a/b"}}
		},
	}
}

func body(t *testing.T, h http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

func TestMetrics(t *testing.T) {
	operations := &Operations{}
	operations.Record("", "/csi.v1.Node/NodeGetInfo", nil, time.Second)
	operations.Record("rdma.example.com", "/csi.v1.Node/NodeStageVolume", nil, time.Second)
	text := body(t, Handler(sources(), operations))
	for _, want := range []string{
		`csi_rdma_gate_open 0`,
		`csi_rdma_gate_last_change_timestamp_seconds 1.796061483e+09`,
		`csi_rdma_gate_cause{reason="PhysLinkDown",subject="mlx5_0/1"} 1`,
		`csi_rdma_gate_mode{mode="enforce"} 1`,
		`csi_rdma_gate_mode{mode="observe"} 0`,
		`csi_rdma_gate_override{state="open"} 0`,
		`csi_rdma_gate_verdict{verdict="unhealthy"} 1`,
		`csi_rdma_gate_verdict{verdict="healthy"} 0`,
		`csi_rdma_gate_trouble{reason="PhysLinkDown",subject="mlx5_0/1"} 1`,
		`csi_rdma_gate_trouble{reason="ModuleMissing",subject="nvme_rdma"} 1`,
		`csi_rdma_gate_port_verdict{device="mlx5_1",port="2",verdict="healthy"} 1`,
		`csi_rdma_gate_probes_total{verdict="healthy"} 40`,
		`csi_rdma_gate_probe_duration_seconds_sum 0.021`,
		`csi_rdma_gate_probe_duration_seconds_count 42`,
		`csi_rdma_gate_changes_total 2`,
		`csi_rdma_gate_refusals_total{code="FailedPrecondition",method="NodeStageVolume",reason="PhysLinkDown"} 7`,
		`csi_rdma_gate_observed_refusals_total{code="Unavailable",method="NodeStageVolume",reason="Override"} 1`,
		`csi_rdma_gate_volumes{state="done"} 3`,
		`csi_rdma_gate_serving 1`,
		`csi_rdma_gate_registered 1`,
		`csi_rdma_gate_registration_confirmed 1`,
		`csi_rdma_gate_registration_wanted 1`,
		`csi_rdma_gate_registrations_total 2`,
		`csi_rdma_gate_deregistrations_total 1`,
		`csi_rdma_gate_registration_failures_total 1`,
		`csi_rdma_gate_topology_refused_keys 1`,
		`csi_rdma_gate_build_info{goversion="`,
		`csi_sidecar_operations_seconds_count{driver_name="rdma.example.com",grpc_status_code="OK",method_name="/csi.v1.Node/NodeStageVolume"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if strings.Contains(text, "NodeGetInfo") {
		t.Error("a call before the driver's name was known is counted for nobody")
	}
}

// An active override is told apart from a closed gate.
func TestOverrideMetric(t *testing.T) {
	s := sources()
	h := *s.Health()
	h.Override = &probe.Override{Open: true, Why: "x"}
	s.Health = func() *probe.Health { return &h }
	text := body(t, Handler(s, &Operations{}))
	for _, want := range []string{`csi_rdma_gate_override{state="open"} 1`, `csi_rdma_gate_override{state="closed"} 0`} {
		if !strings.Contains(text, want) {
			t.Errorf("missing: %s", want)
		}
	}
}

// documented is a row of the table in docs/metrics.md.
type documented struct{ kind, labels, help string }

func documentation(t *testing.T) map[string]documented {
	t.Helper()
	doc, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]documented{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| ([a-z]+) \\| ([^|]*?) ?\\| ([^|]*) \\|$").FindAllStringSubmatch(string(doc), -1) {
		rows[m[1]] = documented{m[2], m[3], m[4]}
	}
	return rows
}

// labelColumn is what the table says of a metric's labels: their names, or the values of the only one if they are a closed
// vocabulary of states. le and quantile go without saying.
func labelColumn(family *dto.MetricFamily) string {
	var names, values []string
	for _, m := range family.GetMetric() {
		names = nil
		for _, l := range m.GetLabel() {
			names = append(names, l.GetName())
			values = append(values, l.GetValue())
		}
	}
	slices.Sort(values)
	if len(names) == 1 {
		return names[0] + ": " + strings.Join(values, ", ")
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func TestDocumentationHasEveryMetricAndNoOther(t *testing.T) {
	operations := &Operations{}
	operations.Record("rdma.example.com", "/csi.v1.Node/NodeStageVolume", nil, time.Second)
	families, err := gatherer(sources(), operations).Gather()
	if err != nil {
		t.Fatal(err)
	}
	rows := documentation(t)
	for _, f := range families {
		is := documented{strings.ToLower(f.GetType().String()), labelColumn(f), f.GetHelp()}
		row := rows[f.GetName()]
		if !strings.HasPrefix(f.GetName(), prefix) { // csi-lib-utils says it in its own words
			is.help = row.help
		}
		if row != is {
			t.Errorf("%s: documented as %q, is %q", f.GetName(), row, is)
		}
		delete(rows, f.GetName())
	}
	for name := range rows {
		t.Errorf("%s is documented and does not exist", name)
	}
}

// A metric of which a test's node shows nothing would be missed above.
func TestEveryMetricIsShown(t *testing.T) {
	ch := make(chan *prometheus.Desc, 100)
	Collector{}.Describe(ch)
	text := body(t, Handler(sources(), &Operations{}))
	for close(ch); ; {
		d, ok := <-ch
		if !ok {
			return
		}
		name := regexp.MustCompile(`fqName: "([^"]*)"`).FindStringSubmatch(d.String())[1]
		if !strings.Contains(text, "# TYPE "+name+" ") {
			t.Errorf("%s is described, but not there", name)
		}
	}
}

func TestStatusPage(t *testing.T) {
	page := Page{Sources: sources(), Node: "worker-7",
		Topology: func() map[string]string { return map[string]string{"rdma.example.com/rdma": "true"} },
		Flags:    map[string]string{"rdma-device": "mlx5_0"}}
	var got struct {
		Version, Node string
		Gate          struct {
			Open        bool
			Mode, Since string
			Cause       []string
		}
		Probe struct {
			Verdict, Reason string
			Ports           []any
		}
		Next         []struct{ About, Do, Documentation string }
		Volumes      map[string]int
		Refusals     []any
		Registration struct {
			Registered, Wanted  bool
			RefusedTopologyKeys []string
		}
		Topology, Flags map[string]string
	}
	text := body(t, page)
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got.Version != "v1.2.3" || got.Node != "worker-7" || got.Gate.Open || got.Gate.Mode != "enforce" || got.Gate.Since != "2026-11-30T17:58:03Z" ||
		len(got.Gate.Cause) != 1 || got.Gate.Cause[0] != "mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling)" ||
		got.Probe.Verdict != "unhealthy" || len(got.Probe.Ports) != 2 || got.Volumes["unfinished"] != 2 || len(got.Refusals) != 2 ||
		!got.Registration.Registered || !got.Registration.Wanted || got.Topology["rdma.example.com/rdma"] != "true" || got.Flags["rdma-device"] != "mlx5_0" {
		t.Errorf("%s", text)
	}
	if len(got.Next) != 3 || got.Next[0].About != "PhysLinkDown" || !strings.Contains(got.Next[0].Do, "the cable") ||
		!strings.HasSuffix(got.Next[0].Documentation, "/docs/troubleshooting.md#physlinkdown") || got.Next[1].About != "ModuleMissing" ||
		got.Next[2].About != "a/b" || !strings.Contains(got.Next[2].Do, "kubectl label node worker-7 a/b-") {
		t.Errorf("next: %+v", got.Next)
	}
}

// A healthy node's page has nothing to do, an overridden one's to end it.
func TestNextStep(t *testing.T) {
	healthy := &probe.Health{Result: probe.Result{Verdict: probe.Healthy}, Open: true}
	if steps := next(healthy, registration.Stats{}, "worker-7"); steps == nil || len(steps) != 0 {
		t.Errorf("healthy: %v", steps)
	}
	healthy.Override = &probe.Override{Why: "firmware update"}
	if steps := next(healthy, registration.Stats{}, "worker-7"); len(steps) != 1 || steps[0].About != "Override" {
		t.Errorf("overridden: %v", steps)
	}
}
