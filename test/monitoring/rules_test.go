package monitoring

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// ruleFile is prometheus-rules.yaml.
type ruleFile struct {
	Groups []struct {
		Rules []rule
	}
}

type rule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

func readYAML(t *testing.T, name string, to any) {
	t.Helper()
	data, err := os.ReadFile(examples + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, to); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

func rules(t *testing.T) []rule {
	t.Helper()
	var f ruleFile
	readYAML(t, "prometheus-rules.yaml", &f)
	if len(f.Groups) != 1 || len(f.Groups[0].Rules) == 0 {
		t.Fatal("prometheus-rules.yaml has no group of rules")
	}
	return f.Groups[0].Rules
}

func TestTheOperatorsObjectHasTheSameRules(t *testing.T) {
	var plain map[string]any
	var object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Spec       map[string]any
	}
	readYAML(t, "prometheus-rules.yaml", &plain)
	readYAML(t, "prometheusrule.yaml", &object)
	if object.APIVersion != "monitoring.coreos.com/v1" || object.Kind != "PrometheusRule" || !reflect.DeepEqual(object.Spec, plain) {
		t.Error("prometheusrule.yaml is not prometheus-rules.yaml below spec")
	}
}

// targetLabels are those that the plain scrape example gives: Prometheus's own and what relabelling adds.
func targetLabels(t *testing.T) labelSet {
	t.Helper()
	var config struct {
		Jobs []struct {
			Relabel []struct {
				Target string `yaml:"target_label"`
			} `yaml:"relabel_configs"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "scrape.yaml", &config)
	has := labelSet{"job": true, "instance": true}
	for _, r := range config.Jobs[0].Relabel {
		if r.Target != "" {
			has.add(r.Target)
		}
	}
	return has
}

// The operator sets namespace, pod and container by itself.
func TestTheOperatorsScrapeGivesTheSameLabels(t *testing.T) {
	var monitor struct {
		Spec struct {
			Endpoints []struct {
				Relabelings []struct {
					Target string `yaml:"targetLabel"`
				}
			} `yaml:"podMetricsEndpoints"`
		}
	}
	readYAML(t, "podmonitor.yaml", &monitor)
	has := labelSet{"job": true, "instance": true, "namespace": true, "pod": true}
	for _, r := range monitor.Spec.Endpoints[0].Relabelings {
		has.add(r.Target)
	}
	if want := targetLabels(t); !reflect.DeepEqual(has, want) {
		t.Errorf("podmonitor.yaml gives %v, scrape.yaml %v", has.names(), want.names())
	}
}

// queryInText is a query of a template, and what the template makes of its result.
var queryInText = regexp.MustCompile(`range query \(printf "([^"]*)"[^}]*\}\}(.*?)\{\{-? end -?\}\}`)

// checkRule holds the rule's query, those in its texts and the labels that these name against what there is.
func (c checker) checkRule(t *testing.T, r rule) {
	t.Helper()
	has, err := c.query(r.Expr)
	if err != nil {
		t.Errorf("%s: %v", r.Alert, err)
	}
	for name, text := range r.Annotations {
		for _, m := range regexp.MustCompile(`\$labels\.(\w+)`).FindAllStringSubmatch(text, -1) {
			if !has[m[1]] {
				t.Errorf("%s: %s names the label %s; there are %v", r.Alert, name, m[1], has.names())
			}
		}
		for _, m := range queryInText.FindAllStringSubmatch(text, -1) {
			of, err := c.query(strings.ReplaceAll(m[1], "%q", `"x"`))
			if err != nil {
				t.Errorf("%s: %s: %v", r.Alert, name, err)
			}
			for _, l := range regexp.MustCompile(`\.Labels\.(\w+)`).FindAllStringSubmatch(m[2], -1) {
				if !of[l[1]] {
					t.Errorf("%s: %s names the label %s of %s", r.Alert, name, l[1], m[1])
				}
			}
		}
	}
}

// Whoever is woken learns which node, by what if there is a Reason, and finds a runbook.
func TestEachAlertSaysWhatToDo(t *testing.T) {
	const repository = "https://github.com/csi-rdma-gate/csi-rdma-gate/blob/main/"
	severities := []string{"info", "warning", "critical"}
	for _, r := range rules(t) {
		if !slices.Contains(severities, r.Labels["severity"]) {
			t.Errorf("%s: severity %q", r.Alert, r.Labels["severity"])
		}
		summary, description := r.Annotations["summary"], r.Annotations["description"]
		ofMany := strings.Contains(r.Expr, "count by (job)")
		if description == "" || !strings.Contains(summary, "$labels.node") && !ofMany {
			t.Errorf("%s: the texts do not say on which node", r.Alert)
		}
		path, anchor, _ := strings.Cut(strings.TrimPrefix(r.Annotations["runbook_url"], repository), "#")
		if anchor == "{{ $labels.reason | toLower }}" {
			for _, reason := range reasons(t) {
				wantHeading(t, path, strings.ToLower(string(reason)))
			}
			continue
		}
		if anchor != strings.ToLower(r.Alert) {
			t.Errorf("%s: the runbook is %s#%s", r.Alert, path, anchor)
		}
		wantHeading(t, path, anchor)
	}
}

// wantHeading looks for a heading with the anchor, in a file named from the repository's root.
func wantHeading(t *testing.T, path, anchor string) {
	t.Helper()
	text, err := os.ReadFile("../../" + path)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^#+ `?([A-Za-z0-9]+)`?$").FindAllSubmatch(text, -1) {
		if strings.ToLower(string(m[1])) == anchor {
			return
		}
	}
	t.Errorf("%s has no heading #%s", path, anchor)
}

// The rule about what cannot be looked at names the Reasons of the verdict unknown, and no other.
func TestTheUnknownReasons(t *testing.T) {
	var want []string
	for _, r := range reasons(t) {
		if r.Verdict() == probe.Unknown {
			want = append(want, string(r))
		}
	}
	slices.Sort(want)
	for _, r := range rules(t) {
		if r.Alert == "CSIRDMAGateUnknown" && !strings.Contains(r.Expr, `{reason=~"`+strings.Join(want, "|")+`"}`) {
			t.Errorf("%s does not name %v", r.Expr, want)
		}
	}
}
