package monitoring

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// testPrometheus has a real Prometheus scrape two gates, one that is closed and one that is held open by hand while its port
// is down, evaluate every rule and answer every query of the dashboard: what no parser sees is whether the series match each
// other.
func (b binaries) testPrometheus(t *testing.T) {
	binary := program(t, "prometheus")
	closed, held := b.startNode(t), b.startNode(t)
	closed.mustMount(1)
	closed.pull()
	closed.refuse(2)
	held.override("open ticket 4711")
	held.awaitMetric(`csi_rdma_gate_override{state="open"} 1`)
	if err := held.hw.Pull(rdmanode.RoCE); err != nil {
		t.Fatal(err)
	}
	held.awaitMetric(`csi_rdma_gate_trouble{reason="PhysLinkDown",subject="mlx5_0/1"} 1`)

	p := &prometheus{n: closed, address: freeAddress(t)}
	p.start(binary, map[string]*node{"worker-7": closed, "worker-8": held})
	p.await("both are scraped", `count(csi_rdma_gate_refusals_total) == 1 and count(csi_rdma_gate_open) == 2`)
	p.checkRules(t)
	p.checkDashboard(t, readDashboard(t))
	closed.mustUnmount(1)
}

// prometheus is the server as a process of its own.
type prometheus struct {
	n       *node // whose test it is
	address string
}

// start has it scrape the nodes each second, with the labels that the scrape examples give.
func (p *prometheus) start(binary string, nodes map[string]*node) {
	p.n.t.Helper()
	dir := p.n.t.TempDir()
	var targets []map[string]any
	for name, n := range nodes {
		labels := map[string]string{"node": name, "namespace": "kube-system", "pod": "csi-" + name}
		targets = append(targets, map[string]any{"targets": []string{n.address}, "labels": labels})
	}
	rules, err := filepath.Abs(examples + "prometheus-rules.yaml")
	if err != nil {
		p.n.t.Fatal(err)
	}
	config, err := json.Marshal(map[string]any{ // JSON is YAML too
		"global":         map[string]string{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{rules},
		"scrape_configs": []map[string]any{{"job_name": "csi-rdma-gate", "static_configs": targets}},
	})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "prometheus.yml"), config, 0o644)
	}
	if err != nil {
		p.n.t.Fatal(err)
	}
	log := &buffer{}
	p.n.start("prometheus", binary, log,
		"--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+p.address)
	p.n.t.Cleanup(func() {
		if p.n.t.Failed() {
			p.n.t.Logf("prometheus's log:\n%s", log)
		}
	})
}

// ask calls Prometheus's HTTP API (https://prometheus.io/docs/prometheus/latest/querying/api/) and puts the answer's data
// into to.
func (p *prometheus) ask(path string, query url.Values, to any) error {
	r, err := http.Get("http://" + p.address + path + "?" + query.Encode())
	if err != nil {
		return err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	answer := struct {
		Status, Error string
		Data          any
	}{Data: to}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%w: %s", err, body)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return nil
}

// series are the labels of what the query returns at this moment.
func (p *prometheus) series(query string) ([]map[string]string, error) {
	var data struct {
		Result []struct{ Metric map[string]string }
	}
	if err := p.ask("/api/v1/query", url.Values{"query": {query}}, &data); err != nil {
		return nil, err
	}
	var found []map[string]string
	for _, r := range data.Result {
		found = append(found, r.Metric)
	}
	return found, nil
}

func (p *prometheus) await(what, query string) {
	p.n.t.Helper()
	p.n.await(what, func() bool {
		found, err := p.series(query)
		return err == nil && len(found) > 0
	})
}

func (p *prometheus) checkRules(t *testing.T) {
	t.Helper()
	var data struct {
		Groups []struct {
			Rules []struct{ Name, Health, LastError string }
		}
	}
	evaluated := func() bool {
		if err := p.ask("/api/v1/rules", nil, &data); err != nil {
			t.Fatal(err)
		}
		for _, r := range data.Groups[0].Rules {
			if r.Health == "unknown" {
				return false
			}
		}
		return true
	}
	p.n.await("every rule is evaluated", evaluated)
	for _, r := range data.Groups[0].Rules {
		if r.Health != "ok" {
			t.Errorf("%s: %s: %s", r.Name, r.Health, r.LastError)
		}
	}
}

// checkDashboard wants an answer to every query, and one that names the faulty port in both tables of what is wrong.
func (p *prometheus) checkDashboard(t *testing.T, d dashboard) {
	t.Helper()
	named := map[string][]map[string]string{}
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			found, err := p.series(variable.ReplaceAllStringFunc(target.Expr, func(v string) string {
				return map[string]string{"$__rate_interval": "1m", "$job": ".*", "$node": ".*"}[v]
			}))
			if err != nil {
				t.Errorf("panel %q, %s: %v", panel.Title, target.RefID, err)
			}
			if len(found) == 0 && panel.Type != "timeseries" {
				t.Errorf("panel %q, %s shows nothing", panel.Title, target.RefID)
			}
			named[panel.Title] = found
		}
	}
	for panel, node := range map[string]string{"Why gates are closed": "worker-7", "Trouble that closes no gate": "worker-8"} {
		if found := named[panel]; len(found) != 1 || !includes(found[0], map[string]string{
			"node": node, "subject": "mlx5_0/1", "reason": "PhysLinkDown", "next": "PhysLinkDown", "runbook": "PhysLinkDown",
		}) {
			t.Errorf("panel %q shows %v (panels: %v)", panel, found, slices.Sorted(maps.Keys(named)))
		}
	}
}

func includes(all, some map[string]string) bool {
	for k, v := range some {
		if all[k] != v {
			return false
		}
	}
	return true
}
