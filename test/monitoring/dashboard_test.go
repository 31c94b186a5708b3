package monitoring

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// dashboard is as much of Grafana's JSON model as is looked at here.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Panels        []panel
	Templating    struct {
		List []struct {
			Name, Type string
			Query      any // a string for a datasource, else an object
		}
	}
}

type panel struct {
	ID         int
	Type       string
	Title      string
	Datasource datasource
	GridPos    struct{ H, W, X, Y int }
	Targets    []struct {
		Datasource                datasource
		RefID, Expr, LegendFormat string
	}
	FieldConfig struct {
		Overrides []struct {
			Matcher    struct{ ID, Options string }
			Properties []struct {
				ID    string
				Value any
			}
		}
	}
	Transformations []struct {
		ID      string
		Options struct {
			RenameByName map[string]string
		}
	}
}

type datasource struct{ Type, UID string }

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	data, err := os.ReadFile(examples + "grafana-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// A dashboard that is imported anywhere has a uid, no id of its own, and asks the Prometheus that is chosen above it.
func TestDashboardCanBeImported(t *testing.T) {
	d := readDashboard(t)
	if d.UID != "csi-rdma-gate" || d.Title == "" || d.SchemaVersion < 39 {
		t.Errorf("uid %q, title %q, schema %d", d.UID, d.Title, d.SchemaVersion)
	}
	ids := map[int]string{}
	cells := map[[2]int]string{}
	chosen := datasource{"prometheus", "${datasource}"}
	for _, p := range d.Panels {
		if other, ok := ids[p.ID]; ok || p.ID == 0 {
			t.Errorf("panels %q and %q have the id %d", p.Title, other, p.ID)
		}
		ids[p.ID] = p.Title
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := cells[[2]int{x, y}]; ok || x >= 24 {
					t.Fatalf("panel %q is where %q is, or beyond the edge", p.Title, other)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource != chosen || len(p.Targets) == 0 {
			t.Errorf("panel %q asks %v", p.Title, p.Datasource)
		}
		for _, target := range p.Targets {
			if target.Datasource != chosen {
				t.Errorf("panel %q, %s asks %v", p.Title, target.RefID, target.Datasource)
			}
		}
	}
}

// variable is one of Grafana in a query. What it stands for does not matter, only that the query parses.
var variable = regexp.MustCompile(`\$(__rate_interval|__range|job|node)\b`)

func substitute(query string) string {
	return variable.ReplaceAllStringFunc(query, func(v string) string {
		if strings.HasPrefix(v, "$__") {
			return "5m"
		}
		return "x"
	})
}

var legendLabel = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)

// checkDashboard holds every query, each label that a legend, a column or a variable names, against what there is.
func (c checker) checkDashboard(t *testing.T, d dashboard) {
	t.Helper()
	for _, p := range d.Panels {
		columns := labelSet{"Value": true}
		for _, target := range p.Targets {
			has, err := c.query(substitute(target.Expr))
			if err != nil {
				t.Errorf("panel %q, %s: %v", p.Title, target.RefID, err)
			}
			columns.add(has.names()...)
			for _, m := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !has[m[1]] {
					t.Errorf("panel %q, %s: the legend names %s, there are %v", p.Title, target.RefID, m[1], has.names())
				}
			}
		}
		titles := labelSet{}
		for _, tr := range p.Transformations {
			for label, title := range tr.Options.RenameByName {
				titles.add(title)
				if !columns[label] {
					t.Errorf("panel %q: there is no column %q, only %v", p.Title, label, columns.names())
				}
			}
		}
		for _, o := range p.FieldConfig.Overrides {
			if o.Matcher.ID == "byName" && !titles[o.Matcher.Options] {
				t.Errorf("panel %q: an override for %q, the columns are %v", p.Title, o.Matcher.Options, titles.names())
			}
		}
	}
	for _, v := range d.Templating.List {
		query, ok := v.Query.(map[string]any)
		if v.Type != "query" || !ok {
			continue
		}
		m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(query["query"].(string))
		if m == nil {
			t.Errorf("variable %s: %v", v.Name, query)
			continue
		}
		if has, err := c.query(substitute(m[1])); err != nil || !has[m[2]] {
			t.Errorf("variable %s: %v, labels %v", v.Name, err, has.names())
		}
	}
}

// The tables show for each Reason what the gate itself advises, and link to its heading.
func TestDashboardSaysTheNextStepForEachReason(t *testing.T) {
	advice, anchors := map[string]string{}, map[string]string{}
	for _, r := range reasons(t) {
		advice[string(r)], anchors[string(r)] = r.Advice(), strings.ToLower(string(r))
	}
	tables := 0
	for _, p := range readDashboard(t).Panels {
		columns := map[string]map[string]string{}
		for _, o := range p.FieldConfig.Overrides {
			for _, property := range o.Properties {
				if property.ID == "mappings" {
					columns[o.Matcher.Options] = mapped(property.Value)
				}
			}
		}
		if len(columns) == 0 {
			continue
		}
		tables++
		if !maps.Equal(columns["Next step"], advice) || !maps.Equal(columns["Runbook"], anchors) {
			t.Errorf("panel %q maps %v", p.Title, columns)
		}
	}
	if tables != 2 {
		t.Errorf("%d tables have next steps", tables)
	}
}

// mapped is what value mappings show for each value.
func mapped(mappings any) map[string]string {
	shown := map[string]string{}
	for _, m := range mappings.([]any) {
		for value, as := range m.(map[string]any)["options"].(map[string]any) {
			shown[value] = as.(map[string]any)["text"].(string)
		}
	}
	return shown
}

// testQueries holds every query of the rules and of the dashboard against the metrics that the gate exports.
func testQueries(t *testing.T, e exported) {
	c := checker{exported: e, target: targetLabels(t)}
	for _, r := range rules(t) {
		c.checkRule(t, r)
	}
	c.checkDashboard(t, readDashboard(t))
	t.Logf("metrics: %s", strings.Join(slices.Sorted(maps.Keys(e)), " "))
}
