package parts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPick(t *testing.T) {
	got, err := Pick("1.36.3, 1.34.3")
	if err != nil || Versions(got) != "1.36.3,1.34.3" || got[1].Runtime || !got[0].Runtime {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := Pick("1.34.3,1.2.3"); err == nil || !strings.Contains(err.Error(), Versions(Releases())) {
		t.Errorf("got %v, want an error that says what there is", err)
	}
}

func TestEveryReleaseHasItsModule(t *testing.T) {
	for _, r := range Releases() {
		text, err := os.ReadFile(filepath.Join("..", r.module(), "go.mod"))
		if err != nil {
			t.Error(err)
		} else if want := "\tk8s.io/kubernetes v" + r.Version + " "; !strings.Contains(string(text), want) {
			t.Errorf("the module for %s does not say %q", r.Version, want)
		}
	}
}

// writeModule writes a module with a tool that prints what it was told at build time.
func writeModule(t *testing.T, dir, comment string) {
	t.Helper()
	for name, content := range map[string]string{
		"go.mod":             "// " + comment + "\nmodule example.com/m\n\ngo 1.26.0\n\ntool example.com/m/cmd/hello\n",
		"go.sum":             "",
		"cmd/hello/hello.go": "package main\n\nvar version string\n\nfunc main() { println(version) }\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBuildBuildsAgainOnlyWhatHasChanged(t *testing.T) {
	module, dir := t.TempDir(), filepath.Join(t.TempDir(), "out")
	const flags = "-X main.version=1"
	program := filepath.Join(dir, "hello")
	mark := func() {
		t.Helper()
		if err := os.WriteFile(program, []byte("as it was"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	built := func(flags string) bool {
		t.Helper()
		if err := build(t.Context(), module, dir, flags); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(program)
		if err != nil {
			t.Fatal(err)
		}
		return string(b) != "as it was"
	}
	writeModule(t, module, "one")
	if !built(flags) {
		t.Error("not built the first time")
	}
	mark()
	if built(flags) {
		t.Error("built again although nothing has changed")
	}
	if !built("-X main.version=2") {
		t.Error("not built with other flags")
	}
	mark()
	writeModule(t, module, "two")
	if !built("-X main.version=2") {
		t.Error("not built from another go.mod")
	}
}

func TestBuildThatFailsIsTriedAgain(t *testing.T) {
	module, dir := t.TempDir(), filepath.Join(t.TempDir(), "out")
	writeModule(t, module, "one")
	source := filepath.Join(module, "cmd/hello/hello.go")
	if err := os.WriteFile(source, []byte("package main\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := build(t.Context(), module, dir, ""); err == nil {
			t.Error("no error without a main function")
		}
	}
}

func TestLockWaitsForItsHolder(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "cache")
	unlock, err := lock(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := lock(ctx, cache); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked twice: %v", err)
	}
	unlock()
	unlock, err = lock(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
}
