package csisanity

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// build builds every program of the test into a directory: gate and bundled driver in the project's own module, the
// rest in this one.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for module, packages := range map[string][]string{
		"../..": {"./cmd/csi-rdma-gate", "./test/driver"},
		".":     {"./mock", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"},
	} {
		cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-buildvcs=false", "-o", dir}, packages...)...)
		cmd.Dir = module
		if output, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, output)
		}
	}
	return dir
}

// start runs a program until the test ends. It must still run then, and end well on SIGTERM.
func start(t *testing.T, program string, args ...string) {
	t.Helper()
	var output bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		name := filepath.Base(program)
		select {
		case err := <-ended:
			t.Errorf("%s ended too early: %v", name, err)
		default:
			_ = cmd.Process.Signal(syscall.SIGTERM)
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("%s on SIGTERM: %v", name, err)
				}
			case <-time.After(10 * time.Second):
				_ = cmd.Process.Kill()
				<-ended
				t.Errorf("%s still ran 10 s after SIGTERM", name)
			}
		}
		if t.Failed() {
			t.Logf("%s %s\n%s", name, strings.Join(args, " "), &output)
		}
	})
}

// eventually waits for ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const patience = 20 * time.Second
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// unmountBelow expects that nothing is mounted below dir any more, and unmounts what is.
func unmountBelow(t *testing.T, dir string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if path := strings.Fields(line)[4]; strings.HasPrefix(path, dir+"/") {
			t.Errorf("still mounted: %s", path)
			_ = syscall.Unmount(path, syscall.MNT_DETACH)
		}
	}
}
