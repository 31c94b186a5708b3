package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// TestMain makes this test binary the command itself when a test runs it so.
func TestMain(m *testing.M) {
	if os.Getenv("RUN_AS_COMMAND") != "" {
		main()
	}
	os.Exit(m.Run())
}

// execute runs the command as a process of its own.
func execute(t *testing.T, args ...string) (stdout, stderr []byte, status int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), "RUN_AS_COMMAND=1")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Fatal(err)
		}
	}
	return out.Bytes(), errs.Bytes(), cmd.ProcessState.ExitCode()
}

func TestABadFlagIsOneLineOnStandardError(t *testing.T) {
	for args, want := range map[string]int{"--no-such-flag": 1, "--gate=off --kubelet-registration-path=/x": 1, "probe --rdma-require=0": 3} {
		stdout, stderr, status := execute(t, strings.Fields(args)...)
		if status != want || len(stdout) > 0 || bytes.Count(stderr, []byte("\n")) != 1 || !bytes.HasPrefix(stderr, []byte("csi-rdma-gate: ")) {
			t.Errorf("%s: status %d, stdout %q, stderr %q", args, status, stdout, stderr)
		}
	}
}

// plain says that a case can be laid out as files: no read that fails, no device node.
func plain(a *txtar.Archive) bool {
	for _, f := range a.Files {
		if content := string(f.Data); strings.HasPrefix(content, "!E") || strings.HasPrefix(content, "!CHR") {
			return false
		}
	}
	return true
}

// header reads what stands before a case's files.
func header(a *txtar.Archive) (fields map[string]string, ports map[string]string) {
	fields, ports = map[string]string{}, map[string]string{}
	for line := range strings.Lines(string(a.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if name, ok := strings.CutPrefix(key, "port "); ok {
			ports[name] = value
		} else {
			fields[key] = value
		}
	}
	return fields, ports
}

// lay writes a case's files below dir.
func lay(t *testing.T, a *txtar.Archive, dir string) {
	t.Helper()
	for _, f := range a.Files {
		path := filepath.Join(dir, f.Name)
		if strings.HasSuffix(f.Name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		data := f.Data
		if quoted, ok := strings.CutPrefix(strings.TrimSpace(string(data)), "!RAW "); ok {
			var raw string
			if err := json.Unmarshal([]byte(quoted), &raw); err != nil {
				t.Fatal(err)
			}
			data = []byte(raw)
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The hardware states of public reports, from files on disk through the command to its JSON.
func TestProbeCommandOnCases(t *testing.T) {
	files, err := filepath.Glob("../../pkg/probe/testdata/cases/*.txtar")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	ran := 0
	for _, file := range files {
		a, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !plain(a) {
			continue
		}
		ran++
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			dir := t.TempDir()
			lay(t, a, dir)
			fields, ports := header(a)
			args := []string{"probe", "-o", "json", "--host-root", dir, "--rdma-checks", fields["checks"], "--rdma-require", fields["require"]}
			if fields["select"] != "-" {
				args = append(args, "--rdma-device", fields["select"])
			}
			stdout, stderr, status := execute(t, args...)
			if len(stderr) > 0 {
				t.Errorf("standard error: %s", stderr)
			}
			var got struct {
				Verdict, Reason string
				Ports           []struct {
					Device, Verdict, Reason string
					Port                    json.Number
				}
			}
			if err := json.Unmarshal(stdout, &got); err != nil || got.Ports == nil {
				t.Fatalf("%s: %v", stdout, err)
			}
			if overall := strings.TrimSpace(got.Verdict + " " + got.Reason); overall != fields["overall"] {
				t.Errorf("overall %s, want %s", overall, fields["overall"])
			}
			if want := map[string]int{"healthy": 0, "unhealthy": 1, "unknown": 2}[got.Verdict]; status != want {
				t.Errorf("exit status %d, want %d", status, want)
			}
			for _, p := range got.Ports {
				name := p.Device + "/" + p.Port.String()
				if verdict := strings.TrimSpace(p.Verdict + " " + p.Reason); verdict != ports[name] {
					t.Errorf("%s %s, want %s", name, verdict, ports[name])
				}
				delete(ports, name)
			}
			if len(ports) > 0 {
				t.Errorf("missing: %v", ports)
			}
		})
	}
	if ran < 25 {
		t.Errorf("only %d cases are plain files", ran)
	}
}

// sequence is hardware whose verdict changes from look to look; the last one stays.
type sequence []probe.Verdict

func (s *sequence) Probe(context.Context, bool) *probe.Result {
	v := (*s)[0]
	if len(*s) > 1 {
		*s = (*s)[1:]
	}
	return &probe.Result{Verdict: v}
}

func TestWait(t *testing.T) {
	const h, u, n = probe.Healthy, probe.Unhealthy, probe.Unknown
	for name, tc := range map[string]struct {
		seq    sequence
		wanted string
		status int
		took   time.Duration
	}{
		"healthy from the start":     {sequence{h}, "healthy", 0, 2 * time.Second},
		"settles":                    {sequence{u, n, u, h}, "healthy", 0, 5 * time.Second},
		"flaps first":                {sequence{h, h, u, h}, "healthy", 0, 5 * time.Second},
		"unhealthy":                  {sequence{h, u}, "unhealthy", 0, 3 * time.Second},
		"never":                      {sequence{u}, "healthy", probeTimedOut, 12500 * time.Millisecond},
		"unknown is neither of both": {sequence{n}, "unhealthy", probeTimedOut, 12500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 12500*time.Millisecond)
				defer cancel()
				shown, begin := 0, time.Now()
				status, err := wait(ctx, &tc.seq, time.Second, tc.wanted, 3, func(*probe.Result) error { shown++; return nil })
				if status != tc.status || (err != nil) != (status != 0) || shown != 1 {
					t.Errorf("status %d, %v, shown %d times; want %d", status, err, shown, tc.status)
				}
				if took := time.Since(begin); took != tc.took {
					t.Errorf("took %v, want %v", took, tc.took)
				}
			})
		})
	}
}

func TestWatchPrintsChangesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 9500*time.Millisecond)
		defer cancel()
		seq := sequence{probe.Healthy, probe.Healthy, probe.Unhealthy, probe.Unhealthy, probe.Healthy}
		var out bytes.Buffer
		po := probeOptions{output: "json"}
		status, err := watch(ctx, &seq, time.Second, po.printer(&out))
		if err != nil || status != probeHealthy {
			t.Errorf("status %d, %v", status, err)
		}
		if lines := strings.Count(out.String(), "\n"); lines != 3 {
			t.Errorf("%d lines, want 3:\n%s", lines, out.String())
		}
	})
}

func TestColoursOnlyOnATerminal(t *testing.T) {
	r := &probe.Result{Verdict: probe.Unhealthy, Reason: probe.NoDevices}
	for _, colour := range []bool{true, false} {
		text, err := render(r, "table", colour)
		if err != nil || strings.Contains(text, "\x1b[31m") != colour {
			t.Errorf("colour %v: %q, %v", colour, text, err)
		}
	}
	if onTerminal(&bytes.Buffer{}) {
		t.Error("a buffer is no terminal")
	}
}

func TestProbeFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-o=yaml":                  "write table or json",
		"--wait=ready":             "write healthy or unhealthy",
		"--wait=healthy --watch":   "one of them",
		"--wait-timeout=soon":      "1s or 2m",
		"--rdma-device=mlx5_0,":    "empty selector",
		"--host-root=/nonexistent": "--host-root",
	} {
		status, err := command(t.Context(), append([]string{"probe"}, strings.Fields(args)...), &bytes.Buffer{})
		if status != probeBadFlags || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: status %d, %v; want %q", args, status, err, want)
		}
	}
}
