package story_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

// binaries are built once for all tests.
type binaries struct{ gate, driver, run string }

func TestStory(t *testing.T) {
	gate, driver := storytest.Build(t)
	b := binaries{gate: gate, driver: driver, run: storytest.Run(t)}
	t.Run("told", b.testTold)
	t.Run("goes on after kill", b.testGoesOnAfterKill)
	t.Run("interrupted", b.testInterrupted)
	t.Run("ordinary user", b.testOrdinaryUser)
	t.Run("host root", b.testHostRoot)
}

func (b binaries) testTold(t *testing.T) {
	var out bytes.Buffer
	err := story.Tell(t.Context(), story.Config{Gate: b.gate, Driver: b.driver, Out: &out, TempDir: storytest.TempDir(t)})
	t.Logf("%s", out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`topology  nfs\.example\.com/rdma=true, nfs\.example\.com/rdma-link-layer=ethernet\n`,
		`Warning  FailedMount  MountVolume\.MountDevice failed for volume "pv-2" : rpc error: code = FailedPrecondition desc = ` +
			`RDMA not usable on node worker-7 since \S+: mlx5_0/1 PhysLinkDown \(state 1: DOWN, phys_state 3: Disabled\); ` +
			`volume "vol-2" was not staged, the CSI driver was not called; retried automatically\n`,
		`MountVolume\.MountDevice failed for volume "pv-3" : .* driver name nfs\.example\.com not found in the list of registered CSI drivers\n`,
		`exit status 0\n`,
	} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("the story does not say %s", want)
		}
	}
}

// kills are what may happen to the processes, each followed by a plain restart.
func kills() map[string]func(*story.Stage) error {
	gate := func(s *story.Stage) error {
		s.Gate.Kill()
		return s.Gate.Start()
	}
	driver := func(s *story.Stage) error {
		s.Driver.Kill()
		return s.Driver.Start()
	}
	both := func(s *story.Stage) error {
		s.Gate.Kill()
		s.Driver.Kill()
		return errors.Join(s.Gate.Start(), s.Driver.Start())
	}
	return map[string]func(*story.Stage) error{"gate": gate, "driver": driver, "both": both, "surge": surge}
}

// surge is an update in which the next gate starts before this one goes.
func surge(s *story.Stage) error {
	var socket string
	for _, arg := range s.Gate.Args {
		if path, ok := strings.CutPrefix(arg, "--kubelet-registration-path="); ok {
			socket = path
		}
	}
	before, err := os.Lstat(socket)
	if err != nil {
		return err
	}
	old := s.Gate
	s.Gate = &child.Program{Name: "next gate", Path: old.Path, Args: old.Args, Stdout: old.Stdout, Stderr: old.Stderr, Died: old.Died}
	if err := s.Gate.Start(); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if now, err := os.Lstat(socket); err == nil && !os.SameFile(before, now) {
			break
		}
		if time.Now().After(deadline) {
			return errors.New("the next gate does not take the socket over")
		}
	}
	return old.Stop(10 * time.Second)
}

// A kill leaves a state from which a plain restart continues.
func (b binaries) testGoesOnAfterKill(t *testing.T) {
	if !storytest.CanMount(t) {
		t.Skip("without mounts a gate that was restarted cannot know that a volume is live, and says Unavailable")
	}
	// A story sleeps most of the time: more of them run at once than there are processors.
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, 9)
	tell := func(name string, between func(context.Context, int, *story.Stage) error) {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			t.Run(name, func(t *testing.T) {
				var out bytes.Buffer
				err := story.Tell(t.Context(), story.Config{
					Gate: b.gate, Driver: b.driver, Out: &out, TempDir: storytest.TempDir(t), Between: between,
				})
				if err != nil {
					t.Fatalf("%v\n%s", err, out.Bytes())
				}
			})
		})
	}
	for who, kill := range kills() {
		for at := 1; at < story.Steps(); at++ {
			tell(fmt.Sprintf("%s after step %d", who, at), func(_ context.Context, step int, s *story.Stage) error {
				if step != at {
					return nil
				}
				return kill(s)
			})
		}
		if who == "surge" {
			continue // it is no accident, so it has no random moment
		}
		for range 3 {
			tell(who+" at any moment", killAtAnyMoment(kill))
		}
	}
}

// killAtAnyMoment kills three times between the first step and the last.
func killAtAnyMoment(kill func(*story.Stage) error) func(context.Context, int, *story.Stage) error {
	killed := make(chan error, 1)
	return func(ctx context.Context, step int, s *story.Stage) error {
		switch step {
		case 1:
			go func() {
				for range 3 {
					select {
					case <-ctx.Done():
						killed <- ctx.Err()
						return
					case <-time.After(rand.N(time.Second)):
					}
					if err := kill(s); err != nil {
						killed <- err
						return
					}
				}
				killed <- nil
			}()
		case story.Steps() - 1:
			return <-killed
		}
		return nil
	}
}
