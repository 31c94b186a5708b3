// Package storytest is what tests that tell the story have in common.
package storytest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Build builds the gate and the fake CSI driver from the working tree that this package is part of.
func Build(t *testing.T) (gate, driver string) {
	t.Helper()
	dir := t.TempDir()
	here := output(t, exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"))
	cmd := exec.Command("go", "build", "-o", dir+"/", "./cmd/csi-rdma-gate", "./test/driver")
	cmd.Dir = filepath.Join(here, "../../..")
	output(t, cmd)
	return filepath.Join(dir, "csi-rdma-gate"), filepath.Join(dir, "driver")
}

// Run builds the story's own command.
func Run(t *testing.T) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "run")
	output(t, exec.Command("go", "build", "-o", bin, "github.com/csi-rdma-gate/csi-rdma-gate/test/story/cmd/run"))
	return bin
}

// TempDir makes a directory with a path short enough for the story to take place there, and fails the test if anything is
// left in it at the end: a file, a mount or a process.
func TempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "st-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mounts {
			t.Errorf("left behind: mount %s", m.Mountpoint)
		}
		for _, p := range awaitProcesses(t, dir) {
			t.Errorf("left behind: process %s", p)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			t.Errorf("left behind: %s", filepath.Join(dir, e.Name()))
		}
		if !t.Failed() {
			os.Remove(dir)
		}
	})
	return dir
}

// CanMount says whether this process may mount: not every root may.
func CanMount(t *testing.T) bool {
	t.Helper()
	dir := t.TempDir()
	if unix.Mount(dir, dir, "", unix.MS_BIND, "") != nil {
		return false
	}
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	return true
}

// awaitProcesses returns the processes that have dir in their command line, once there are none or
// after a moment: one that was killed takes a while to go.
func awaitProcesses(t *testing.T, dir string) []string {
	deadline := time.Now().Add(5 * time.Second)
	for {
		ps := processes(t, dir)
		if len(ps) == 0 || time.Now().After(deadline) {
			return ps
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func processes(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, f := range files {
		// A process that ends meanwhile has no file.
		b, _ := os.ReadFile(f)
		if line := string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})); strings.Contains(line, dir+"/") {
			found = append(found, line)
		}
	}
	return found
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, stderr.Bytes())
	}
	return strings.TrimSpace(string(out))
}
