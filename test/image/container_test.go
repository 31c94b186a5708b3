package image_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/examples/manifest"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/image/buildah"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/image/bundle"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story"
)

// The examples that have a gate in them.
const (
	plain     = "daemonset.yaml"
	verbsOpen = "daemonset-verbs-open.yaml"
	before129 = "daemonset-before-1.29.yaml"
)

// example is the gate of an example, on a node whose kubelet has another root directory, as the header of daemonset.yaml
// tells people to write it.
func example(t *testing.T, name string, at story.Places) bundle.Container {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../examples", name))
	if err != nil {
		t.Fatal(err)
	}
	pod, err := manifest.PodOf([]byte(strings.ReplaceAll(string(text), "/var/lib/kubelet", at.Kubelet)))
	if err != nil {
		t.Fatal(err)
	}
	gate, err := pod.Gate()
	if err != nil {
		t.Fatal(err)
	}
	return bundle.Container{
		Image:     native.about.Config,
		Pod:       pod,
		Container: gate,
		Fields:    manifest.Fields{"spec.nodeName": nodeName},
		Volumes:   volumes(pod, at),
	}
}

// volumes puts the simulated hardware where the host's is asked for, and the driver's directory where the emptyDir is.
func volumes(pod manifest.Pod, at story.Places) map[string]string {
	dirs := map[string]string{}
	for _, v := range pod.Volumes {
		switch {
		case v.HostPath == nil:
			dirs[v.Name] = at.DriverSocket
		case v.HostPath.Path == "/sys", v.HostPath.Path == "/dev":
			dirs[v.Name] = at.Host + v.HostPath.Path
		default:
			dirs[v.Name] = v.HostPath.Path
		}
	}
	return dirs
}

// bare is the image with the example's security context, and nothing else: no mount, no network.
func bare(t *testing.T, args ...string) bundle.Container {
	t.Helper()
	c := example(t, plain, story.Places{Kubelet: "/nowhere"})
	c.Pod.HostNetwork = false
	c.Container = &corev1.Container{Args: args, SecurityContext: c.Container.SecurityContext}
	return c
}

var containers atomic.Int32

// runc is what to execute to run the container in the foreground. It is gone when the test ends.
func runc(t *testing.T, c *bundle.Container) (path string, args []string, err error) {
	if path, err = exec.LookPath("runc"); err != nil {
		return "", nil, err
	}
	c.ID = fmt.Sprintf("csi-rdma-gate-%d-%d", os.Getpid(), containers.Add(1))
	dir := filepath.Join(workDir, c.ID)
	if err := c.Write(t.Context(), dir, native.rootfs); err != nil {
		return "", nil, err
	}
	id := c.ID
	t.Cleanup(func() {
		// runc run deletes the container itself, unless it was killed.
		if _, err := runcDo("delete", "--force", id); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return path, []string{"--root", runcRoot(), "run", "--bundle", dir, id}, nil
}

func runcRoot() string { return filepath.Join(workDir, "runc") }

func runcDo(args ...string) (string, error) {
	return buildah.Output(exec.Command("runc", append([]string{"--root", runcRoot()}, args...)...))
}

// pidOf is the process id of the container's first process, as seen here.
func pidOf(id string) (int, error) {
	text, err := runcDo("state", id)
	if err != nil {
		return 0, err
	}
	var state struct{ Pid int }
	return state.Pid, json.Unmarshal([]byte(text), &state)
}

// statusOf is /proc/PID/status by its keys.
func statusOf(pid int) (map[string]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	status := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		status[key] = strings.TrimSpace(value)
	}
	return status, nil
}
