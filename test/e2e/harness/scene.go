// Package harness lets scenarios play on a node: steps that are named and timed, kubectl, the
// DaemonSet that users deploy, the simulated hardware below it, and volumes and pods that use them.
package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// Scenario is a story on a node. It finds the node as a fresh one: nothing deployed, cables in.
type Scenario struct {
	// Name is what a run is asked for by, and the first column of the table.
	Name string
	// Play plays it by steps. The first one that fails ends it.
	Play func(*Scene)
}

// Scene is what a scenario plays on. Its methods are for the scenario's own goroutine. Those that
// take no context and return no error fail the step that they are called in, and with it the scenario.
type Scene struct {
	Node *node.Node
	// Hardware is the node's, with the devices of package rdmanode and cables to pull.
	Hardware *rdmanode.Node

	manifest string
	name     string
	table    *Table
	evidence io.Writer
	// run ends when nobody wants to know any more.
	run context.Context
	// note is the result of the step that runs.
	note string
}

// hardwareDir is where the node has its simulated hardware: it stands for /sys and /dev.
const hardwareDir = "/run/hardware"

// Config is what all scenarios of a run share.
type Config struct {
	Node *node.Node
	// Manifest is the file with the DaemonSet that users start from.
	Manifest string
	Table    *Table
	// Evidence gets what one needs to understand a failed step.
	Evidence io.Writer
}

// Play plays a scenario, cleans up after it, and notes in the table what happened. It reports
// whether the node can be used for another one.
func Play(ctx context.Context, cfg Config, s Scenario) (reusable bool) {
	scene := &Scene{Node: cfg.Node, manifest: cfg.Manifest, name: s.Name, table: cfg.Table, evidence: cfg.Evidence, run: ctx}
	if err := scene.installHardware(); err != nil {
		cfg.Table.Add(s.Name, "fresh hardware", 0, err)
		return false
	}
	scene.try(func() { s.Play(scene) })
	if cfg.Node.Context().Err() != nil {
		return false
	}
	return scene.try(func() { scene.Step("clean state", scene.clear) })
}

// try runs f, which a failed step may end, in a goroutine of its own.
func (s *Scene) try(f func()) (ok bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
		ok = true
	}()
	<-done
	return ok
}

func (s *Scene) installHardware() error {
	root := s.Node.Path(hardwareDir)
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	var err error
	s.Hardware, err = rdmanode.New(root)
	if err != nil {
		return err
	}
	if !s.Hardware.Verbs() {
		return errors.New("the verbs devices could not be made")
	}
	// The example's driver has this tree as its /dev, and runc asks every container for the null device.
	return unix.Mknod(root+"/dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))
}

// stepDeadline ends a step that forgot to limit itself. Kubelet's longest back-off is 2 min 2 s, and
// some waits go through two of them.
const stepDeadline = 10 * time.Minute

// Step runs a step. If it fails, what is known of the node is shown and the scenario ends, as by
// FailNow of a test.
func (s *Scene) Step(name string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(s.Node.Context(), stepDeadline)
	defer cancel()
	s.note = "ok"
	began := time.Now()
	err := f(ctx)
	took := time.Since(began)
	if err == nil {
		s.table.add(row{scenario: s.name, step: name, took: took, result: s.note})
		return
	}
	if cause := context.Cause(s.Node.Context()); cause != nil && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	s.table.Add(s.name, name, took, err)
	if s.run.Err() == nil {
		s.show()
	}
	runtime.Goexit()
}

// Note replaces the ok of the step's line by what was measured or seen.
func (s *Scene) Note(format string, args ...any) { s.note = fmt.Sprintf(format, args...) }

// Warn is Note for what works as intended and yet harms users.
func (s *Scene) Warn(format string, args ...any) { s.Note("warning: "+format, args...) }

// Eventually calls f until it succeeds, ctx ends or the deadline passes; then its error says what was
// awaited and what f said last. Deadlines are for a busy machine: they cost nothing on a quick one.
func Eventually(ctx context.Context, deadline time.Duration, awaited string, f func() error) error {
	return node.Eventually(ctx, deadline, awaited, f)
}
