package examples_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/examples/manifest"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

// The gate itself reads the flags of each example, checks them and starts, with the example's mounts in a directory of
// ours.
func TestTheGateTakesTheFlags(t *testing.T) {
	gate, _ := storytest.Build(t)
	for _, name := range daemonSets() {
		t.Run(name, func(t *testing.T) {
			_, c := pod(t, name)
			root := storytest.TempDir(t)
			for _, m := range c.VolumeMounts {
				if err := os.MkdirAll(filepath.Join(root, m.MountPath), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			t.Cleanup(func() { empty(t, root) })
			env, err := manifest.Environment(c, manifest.Fields{"spec.nodeName": "worker-7"})
			if err != nil {
				t.Fatal(err)
			}
			args := append([]string{"--plugin-registration-path=" + manifest.Flag(c.Args, "plugin-registration-path", "/registration")},
				manifest.Args(c, env)...)
			if err := startAndStop(gate, moved(args, c, root)); err != nil {
				t.Error(err)
			}
		})
	}
}

// moved puts every path that is mounted, or that mounts are below, under root.
func moved(args []string, c *corev1.Container, root string) []string {
	var all []string
	for _, arg := range args {
		flag, value, _ := strings.Cut(arg, "=")
		for _, m := range c.VolumeMounts {
			if filepath.IsAbs(value) && (manifest.Within(value, m.MountPath) || manifest.Within(m.MountPath, value)) {
				value = filepath.Join(root, value)
				break
			}
		}
		all = append(all, flag+"="+value)
	}
	return all
}

// startAndStop is content with a gate that comes up and goes in peace.
func startAndStop(gate string, args []string) error {
	cmd := exec.Command(gate, args...)
	log, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	var said strings.Builder
	lines := bufio.NewScanner(io.TeeReader(log, &said))
	for lines.Scan() {
		if strings.Contains(lines.Text(), `"Starting"`) {
			_ = cmd.Process.Signal(syscall.SIGTERM) // if it has ended, Wait says how
		}
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w\n%s", err, said.String())
	}
	return nil
}

func empty(t *testing.T, dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Error(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Error(err)
		}
	}
}
