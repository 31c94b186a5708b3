package image_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/image/bundle"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

var refusal = regexp.MustCompile(`FailedMount  MountVolume\.MountDevice failed for volume "pv-2" : rpc error: code = FailedPrecondition desc = ` +
	`RDMA not usable on node worker-7 since \S+: mlx5_0/1 PhysLinkDown `)

// The story of `make run`, with the gate in a container as each of the examples has it: a mount, a refusal, the drain, the
// recovery and an orderly end.
func TestTheStoryIsTrueOfTheExamples(t *testing.T) {
	_, driver := storytest.Build(t)
	for name, check := range map[string]func(pid int) error{
		plain:     confined,
		before129: confined,
		verbsOpen: func(int) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tell(t, driver, name, check, func(*bundle.Container) {})
		})
	}
	t.Run("device plugin", func(t *testing.T) {
		t.Parallel()
		tell(t, driver, plain, confined, func(c *bundle.Container) {
			c.Args = append(c.Args, "--rdma-checks=port,gid,netdev,verbs-open")
			c.Devices = []string{c.Volumes["host-dev"] + "/infiniband/uverbs0"}
		})
	})
}

// tell tells the story with a container that was edited, and looks at its process once it runs.
func tell(t *testing.T, driver, name string, check func(pid int) error, edit func(*bundle.Container)) {
	var gate bundle.Container
	var out bytes.Buffer
	err := story.Tell(t.Context(), story.Config{
		Driver: driver, Out: &out, TempDir: sharedDir(t),
		Launch: func(at story.Places, short []string) (string, []string, error) {
			if err := makeVerbsUsable(at.Host); err != nil {
				return "", nil, err
			}
			gate = example(t, name, at)
			gate.Args = short
			edit(&gate)
			return runc(t, &gate)
		},
		Between: func(_ context.Context, step int, _ *story.Stage) error {
			if step > 1 {
				return nil
			}
			pid, err := pidOf(gate.ID)
			if err != nil {
				return err
			}
			return check(pid)
		},
	})
	t.Logf("%s", out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !refusal.Match(out.Bytes()) {
		t.Error("no volume was refused with its reason")
	}
}

// confined is an error unless the kernel says of the process what the manifest asks for.
func confined(pid int) error {
	status, err := statusOf(pid)
	if err != nil {
		return err
	}
	const none = "0000000000000000"
	for key, want := range map[string]string{
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapBnd": none, "CapAmb": none,
		"NoNewPrivs": "1", "Seccomp": "2", "Uid": "0\t0\t0\t0",
	} {
		if status[key] != want {
			return fmt.Errorf("%s of the gate is %q, not %q", key, status[key], want)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); f[4] == "/" && !strings.HasPrefix(f[5]+",", "ro,") {
			return fmt.Errorf("the root file system is writable: %s", line)
		}
	}
	return nil
}
