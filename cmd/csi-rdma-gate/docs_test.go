package main

import (
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/status"
)

// root is the repository, seen from here.
const root = "../.."

// What answers and Reasons say is compared with the documentation where it is made, in pkg/proxy and pkg/probe.

// Messages, /status and alerts link to a Reason's heading, and the README has a row for it.
func TestDocumentationHasEveryReasonAndNoOther(t *testing.T) {
	reasons := reasonsInSource(t)
	_, section, _ := strings.Cut(read(t, "docs/troubleshooting.md"), "\n## Reasons\n")
	section, _, _ = strings.Cut(section, "\n## ")
	headings := regexp.MustCompile(`(?m)^### (.+)\n\nVerdict (\w+)\.`).FindAllStringSubmatch(section, -1)
	verdicts := map[string]string{}
	for _, h := range headings {
		verdicts[h[1]] = h[2]
	}
	anchors := anchorsOf(t, "docs/troubleshooting.md")
	rows := readmeReasons(t)
	for _, r := range reasons {
		name, verdict := string(r), r.Verdict().String()
		if verdicts[name] != verdict || !anchors[strings.ToLower(name)] {
			t.Errorf("%s: docs/troubleshooting.md has verdict %q, want a heading and %q", name, verdicts[name], verdict)
		}
		if what, ok := rows[name]; !ok || strings.HasPrefix(what, "unknown:") != (r.Verdict() == probe.Unknown) {
			t.Errorf("%s: the README says %q; want a row, which begins with unknown: for that verdict only", name, what)
		}
		delete(verdicts, name)
		delete(rows, name)
	}
	for name := range verdicts {
		t.Errorf("%s has a heading in docs/troubleshooting.md and does not exist", name)
	}
	for name := range rows {
		t.Errorf("%s has a row in the README and does not exist", name)
	}
	if n := strings.Count(section, "\n### "); n != len(headings) {
		t.Errorf("%d headings, %d of them followed by a verdict", n, len(headings))
	}
}

// Flags of other programs are written with the program before them, so that what begins with dashes is ours.
func TestDocumentationNamesNoFlagThatIsNotThere(t *testing.T) {
	known, _ := newFlags()
	(&probeOptions{}).add(known)
	mention := regexp.MustCompile("(?m)(?:`| {4}- )--?([a-z][a-z-]*)(?:=([^`\\s]*))?(?: +#.*)?(?:`|$)")
	for _, name := range markdown(t) {
		if below(name, "examples/") {
			continue // shows other programs' manifests too, and is tested in test/examples
		}
		for _, m := range mention.FindAllStringSubmatch(read(t, name), -1) {
			f := known.Lookup(m[1])
			if f == nil {
				t.Errorf("%s: no flag --%s", name, m[1])
			} else if err := take(f, m[2]); err != nil {
				t.Errorf("%s: --%s=%s: %v", name, m[1], m[2], err)
			}
		}
	}
}

// take lets a flag read a value. An empty one is only a mention.
func take(f *flag.Flag, value string) error {
	if value == "" {
		return nil
	}
	return f.Value.Set(value)
}

func TestTheREADMEHasTheProbeCommandsFlags(t *testing.T) {
	readme := read(t, "README.md")
	only := flag.NewFlagSet("", flag.ContinueOnError)
	(&probeOptions{}).add(only)
	only.VisitAll(func(f *flag.Flag) {
		if !regexp.MustCompile(`-` + f.Name + `[ =]`).MatchString(readme) {
			t.Errorf("-%s is missing", f.Name)
		}
	})
}

func TestDocumentationNamesNoMetricThatIsNotThere(t *testing.T) {
	known := map[string]bool{}
	described := make(chan *prometheus.Desc, 100)
	status.Collector{}.Describe(described)
	close(described)
	for d := range described {
		name := regexp.MustCompile(`fqName: "([^"]*)"`).FindStringSubmatch(d.String())[1]
		known[name], known[name+"_sum"], known[name+"_count"] = true, true, true
	}
	for _, name := range files(t, func(name string) bool { return strings.HasSuffix(name, ".md") || below(name, "examples/") }) {
		for _, metric := range regexp.MustCompile(`csi_rdma_gate_[a-z_]+`).FindAllString(read(t, name), -1) {
			if !known[metric] {
				t.Errorf("%s: no metric %s", name, metric)
			}
		}
	}
}

// The first column of the table has the messages of the log. A few are not written where they are logged, so each has to be a
// literal of the source, and what is written there has to be in the table.
func TestDocumentationHasEveryLogMessageAndNoOther(t *testing.T) {
	literals, logged := map[string]bool{}, map[string]bool{}
	for _, name := range files(t, isSource) {
		inspect(t, name, func(n ast.Node) {
			switch n := n.(type) {
			case *ast.BasicLit:
				literals[literal(n)] = true
			case *ast.CallExpr:
				if message := logMessage(n); message != "" {
					logged[message] = true
				}
			}
		})
	}
	_, section, _ := strings.Cut(read(t, "docs/troubleshooting.md"), "\n## What the gate's log says\n")
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \|`).FindAllStringSubmatch(section, -1) {
		for _, m := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(row[1], -1) {
			documented[m[1]] = true
			if !literals[m[1]] {
				t.Errorf("documented, but never logged: %q", m[1])
			}
		}
	}
	for message := range logged {
		if !documented[message] {
			t.Errorf("logged, but not documented: %q", message)
		}
	}
}

// logMessage is what a call of klog.InfoS or klog.ErrorS says, if it is a literal.
func logMessage(call *ast.CallExpr) string {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := f.X.(*ast.Ident); !ok || x.Name != "klog" {
		return ""
	}
	switch f.Sel.Name {
	case "InfoS":
		return literal(call.Args[0])
	case "ErrorS":
		return literal(call.Args[1])
	}
	return ""
}

// literal is the text of a string literal; empty for anything else.
func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		text, _ := strconv.Unquote(l.Value)
		return text
	}
	return ""
}

func isSource(name string) bool {
	return below(name, "pkg/", "cmd/") && strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
}

func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for _, name := range markdown(t) {
		for _, m := range link.FindAllStringSubmatch(prose(read(t, name)), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			switch {
			case strings.Contains(target, "://"):
			case target == "":
				leadsSomewhere(t, name, name, anchor)
			default:
				leadsSomewhere(t, name, path.Join(path.Dir(name), target), anchor)
			}
		}
	}
}

// /status, alerts and dashboards link to the documentation from where no relative path leads. What comes after # may be a template
// there, which nothing is said of.
func TestLinksToTheRepositoryLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`https://github\.com/csi-rdma-gate/csi-rdma-gate/blob/main/([\w./-]*\w)(?:#([\w-]*))?`)
	for _, name := range files(t, func(name string) bool { return isSource(name) || below(name, "docs/", "examples/") }) {
		for _, m := range link.FindAllStringSubmatch(read(t, name), -1) {
			leadsSomewhere(t, name, m[1], m[2])
		}
	}
}

func leadsSomewhere(t *testing.T, from, file, anchor string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		t.Errorf("%s: %s: no such file", from, file)
	} else if anchor != "" && !anchorsOf(t, file)[anchor] {
		t.Errorf("%s: %s: no heading #%s", from, file, anchor)
	}
}

// reasonsInSource are the constants of type Reason.
func reasonsInSource(t *testing.T) (reasons []probe.Reason) {
	inspect(t, "pkg/probe/health.go", func(n ast.Node) {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Reason" {
			reasons = append(reasons, probe.Reason(literal(spec.Values[0])))
		}
	})
	if len(reasons) == 0 {
		t.Fatal("no Reason found")
	}
	return reasons
}

// readmeReasons are the rows of the README's table; one row can have several Reasons.
func readmeReasons(t *testing.T) map[string]string {
	_, table, _ := strings.Cut(read(t, "README.md"), "\n| Reason |")
	table, _, _ = strings.Cut(table, "\n\n")
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\| ([^|]*) \\|").FindAllStringSubmatch(table, -1) {
		for _, name := range regexp.MustCompile("`([^`]*)`").FindAllStringSubmatch(row[1], -1) {
			rows[name[1]] = row[2]
		}
	}
	return rows
}

// anchorsOf are the headings of a file as GitHub names them.
func anchorsOf(t *testing.T, name string) map[string]bool {
	anchors := map[string]bool{}
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(prose(read(t, name)), -1) {
		anchors[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, heading[1])] = true
	}
	return anchors
}

// prose is a file without its fenced blocks.
func prose(text string) string {
	return regexp.MustCompile("(?ms)^ *```.*?^ *```$").ReplaceAllString(text, "")
}

func below(name string, dirs ...string) bool {
	return slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(name, dir) })
}

func markdown(t *testing.T) []string {
	return files(t, func(name string) bool { return strings.HasSuffix(name, ".md") })
}

// files are those of the repository that want likes, less what was built.
func files(t *testing.T, want func(name string) bool) []string {
	t.Helper()
	found := map[string]bool{}
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // a test beside this one has removed it
			return nil
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "build"):
			return fs.SkipDir
		case entry.Type().IsRegular() && want(name):
			found[name] = true
		}
		return nil
	})
	if err != nil || len(found) == 0 {
		t.Fatalf("%d files, %v", len(found), err)
	}
	return slices.Sorted(maps.Keys(found))
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func inspect(t *testing.T, name string, visit func(ast.Node)) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		visit(n)
		return true
	})
}
