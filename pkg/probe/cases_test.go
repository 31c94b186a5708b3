package probe

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// knownFailing names cases that do not pass yet, and why.
var knownFailing = map[string]string{}

// testCase is a state of the hardware and its right verdict, as testdata/cases/*.txtar tells it.
type testCase struct {
	config  Config
	ports   map[string]string // "mlx5_0/1": "unhealthy PhysLinkDown"
	overall string
	files   []txtar.File
}

func loadCase(t testing.TB, file string) testCase {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	archive := txtar.Parse(data)
	c := testCase{ports: map[string]string{}, files: archive.Files}
	for line := range strings.Lines(string(archive.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if err := c.header(key, value); err != nil {
			t.Fatalf("%s: %s: %v", file, key, err)
		}
	}
	return c
}

func (c *testCase) header(key, value string) (err error) {
	port, isPort := strings.CutPrefix(key, "port ")
	switch {
	case isPort:
		c.ports[port] = value
	case key == "overall":
		c.overall = value
	case key == "checks":
		c.config.Checks, err = ParseChecks(value)
	case key == "require":
		c.config.Require, err = ParseRequire(value)
	case key == "select" && value != "-":
		c.config.Selectors, err = ParseSelectors([]string{value})
	}
	return err
}

func verdictText(v Verdict, r Reason) string {
	return strings.TrimSpace(fmt.Sprint(v, " ", r))
}

func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil || len(files) < 40 {
		t.Fatalf("only %d cases: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			if why, known := knownFailing[name]; known {
				t.Skip(why)
			}
			c := loadCase(t, file)
			c.check(t, newProber(c.config, treeOf(t, c.files)).Probe(t.Context(), true))
		})
	}
}

func (c testCase) check(t *testing.T, r *Result) {
	t.Helper()
	got := map[string]string{}
	for i := range r.Ports {
		got[r.Ports[i].Name()] = verdictText(r.Ports[i].Verdict, r.Ports[i].Reason)
	}
	if !maps.Equal(got, c.ports) {
		t.Errorf("ports %v, want %v", got, c.ports)
	}
	if got := verdictText(r.Verdict, r.Reason); got != c.overall {
		t.Errorf("overall %s, want %s", got, c.overall)
	}
	if !slices.IsSortedFunc(r.Ports, func(a, b Port) int { return compareNatural(a.Device, b.Device) }) {
		t.Error("ports are not in natural order")
	}
	for _, trouble := range r.Troubles() {
		t.Log(trouble)
	}
}
