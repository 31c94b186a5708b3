// Package story tells, with the real gate and a real CSI driver as child processes, what the gate
// is for: a volume is mounted, the cable is pulled, the next mount is refused with its reason, the
// driver is deregistered once the node is drained, and all of it comes back with the cable.
//
// The node is simulated (package rdmanode) and so is kubelet (package kubelet), but every socket,
// directory and, where permitted, mount is real.
package story

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
)

// Names in the story.
const (
	driverName = "nfs.example.com"
	nodeName   = "worker-7"
)

// stepTimeout is far more than any step takes, kubelet's waits after a killed process included.
const stepTimeout = time.Minute

// Config says which binaries play and how the story is told. Driver and Out are required, and Gate or Launch.
type Config struct {
	// Gate and Driver are the paths of csi-rdma-gate and of test/driver.
	Gate, Driver string
	// GateArgs are appended to the gate's flags and so win over the story's own.
	GateArgs []string
	// Launch, if not nil, starts the gate otherwise than as the binary Gate with flags for the story's places. It is told
	// the places, and the flags by which the story is shorter than life, and returns what to run.
	Launch func(at Places, short []string) (path string, args []string, err error)
	Out    io.Writer
	// TempDir is where the story's directory is made, and removed at the end. Keep it short, for
	// the sake of the sockets in it; empty is os.TempDir or, if that is long, /tmp.
	TempDir string
	// Plugins is kubelet's plugin manager, PluginsName what to call it; nil is the stand-in.
	Plugins     kubelet.PluginManager
	PluginsName string
	// Between, if not nil, is called after each step but the last with the step's number.
	Between func(ctx context.Context, step int, s *Stage) error
}

// Places are the directories of the node.
type Places struct {
	// Kubelet is kubelet's root directory.
	Kubelet string
	// DriverSocket is the directory of the driver's socket, csi.sock.
	DriverSocket string
	// Host is where the hardware's sys and dev are.
	Host string
}

// Steps is how many steps the story has.
func Steps() int { return len(steps()) }

// Tell tells the story and leaves nothing behind, however it ends: if it has to, the error is a
// *LeftoverError. When ctx ends it stops at once.
func Tell(ctx context.Context, cfg Config) (err error) {
	s, err := newStage(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = s.close(err) }()
	s.introduce()
	if err := s.start(); err != nil {
		return err
	}
	all := steps()
	for i, st := range all {
		s.say.step(i+1, st.title)
		if err := s.play(st); err != nil {
			return err
		}
		if cfg.Between != nil && i+1 < len(all) {
			if err := cfg.Between(s.ctx, i+1, s); err != nil {
				return err
			}
		}
	}
	s.say.done("That is all.")
	return nil
}

// play runs a step within stepTimeout.
func (s *Stage) play(st step) error {
	ctx, cancel := context.WithTimeout(s.ctx, stepTimeout)
	defer cancel()
	err := st.run(ctx, s)
	if err == nil || s.ctx.Err() != nil {
		return s.orCause(err)
	}
	return fmt.Errorf("%s: %w", st.title, err)
}
