// Package story tells, with the real gate and a real CSI driver as child processes, what the gate
// is for: a volume is mounted, the cable is pulled, the next mount is refused with its reason, the
// driver is deregistered once the node is drained, and all of it comes back with the cable.
//
// The node is simulated (package rdmanode) and so is kubelet (package kubelet), but every socket,
// directory and, where permitted, mount is real.
package story

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Names in the story.
const (
	driverName = "nfs.example.com"
	nodeName   = "worker-7"
)

// stepTimeout is far more than any step takes, kubelet's waits after a killed process included.
const stepTimeout = time.Minute

// Config says which binaries play and how the story is told. Gate, Driver and Out are required.
type Config struct {
	// Gate and Driver are the paths of csi-rdma-gate and of test/driver.
	Gate, Driver string
	// GateArgs are appended to the gate's flags and so win over the story's own.
	GateArgs []string
	Out      io.Writer
	// TempDir is where the story's directory is made, and removed at the end. Keep it short, for
	// the sake of the sockets in it; empty is os.TempDir or, if that is long, /tmp.
	TempDir string
	// Plugins is kubelet's plugin manager, PluginsName what to call it; nil is the stand-in.
	Plugins     kubelet.PluginManager
	PluginsName string
	// Between, if not nil, is called after each step but the last with the step's number.
	Between func(ctx context.Context, step int, s *Stage) error
}

// pod is a pod with one volume.
type pod struct {
	uid    string
	volume kubelet.Volume
}

func newPod(n int) pod {
	return pod{
		uid:    fmt.Sprintf("pod-%d", n),
		volume: kubelet.Volume{PV: fmt.Sprintf("pv-%d", n), Driver: driverName, Handle: fmt.Sprintf("vol-%d", n)},
	}
}

// step is one scene. Its title is printed before it runs.
type step struct {
	title string
	run   func(context.Context, *Stage) error
}

func steps() []step {
	return []step{
		{"The gate sees healthy RDMA and registers the driver", register},
		{"A pod gets its volume", mountFirst},
		{"Somebody pulls the cable of " + rdmanode.RoCE, pullCable},
		{"The next pod's volume is refused", refuseSecond},
		{"Kubelet repeats the publish of the volume that is mounted already", republishFirst},
		{"The pods are deleted while RDMA is down", deletePods},
		{"The node is drained: the gate deregisters the driver", waitDeregistered},
		{"The cable is plugged in again", plugCable},
		{"A pod gets its volume again", mountThird},
		{"The node is shut down", shutDown},
	}
}

// Steps is how many steps the story has.
func Steps() int { return len(steps()) }

// Tell tells the story and leaves nothing behind, however it ends. When ctx ends it stops at once;
// the error is then context.Cause(ctx) itself, unless something could not be removed.
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

func register(ctx context.Context, s *Stage) error {
	drv, err := s.Kubelet.Drivers.Wait(ctx, driverName, true)
	if err != nil {
		return err
	}
	s.say.line("kubelet", "%s is registered", driverName)
	s.sayTopology(drv)
	return nil
}

func mountFirst(ctx context.Context, s *Stage) error { return s.mount(ctx, newPod(1)) }

func mountThird(ctx context.Context, s *Stage) error { return s.mount(ctx, newPod(3)) }

func pullCable(_ context.Context, s *Stage) error {
	s.say.line("node", "%s: phys_state 3: Disabled, state 1: DOWN, no carrier", rdmanode.RoCE)
	return s.node.Pull(rdmanode.RoCE)
}

// refuseSecond lets a probe or two go by and then tries until the answer is the gate's refusal. A
// pod that is quicker than the next probe still gets its volume, and one that comes while the gate
// restarts is told other things.
func refuseSecond(ctx context.Context, s *Stage) error {
	p := newPod(2)
	for {
		select {
		case <-ctx.Done():
			return errors.New("the volume was never refused")
		case <-time.After(2 * probeInterval):
		}
		before, err := s.driverCalls(ctx)
		if err != nil {
			return err
		}
		err = s.Kubelet.Mount(ctx, p.uid, p.volume)
		if refused(err) {
			after, cErr := s.driverCalls(ctx)
			if cErr != nil {
				return cErr
			}
			s.say.event(err)
			if after.of("NodeStageVolume") != before.of("NodeStageVolume") {
				return errors.New("the driver was called for the volume that the gate refused")
			}
			s.say.line("driver", "was not called: NodeStageVolume still %d", after.of("NodeStageVolume"))
			return nil
		}
		if err == nil {
			err = s.unmount(ctx, p)
		} else {
			s.say.retry(err)
			err = nil
		}
		if err != nil {
			return err
		}
	}
}

// refused says whether the gate refused to let the driver stage.
func refused(err error) bool {
	var ev *kubelet.EventError
	return errors.As(err, &ev) && ev.Operation == "MountVolume.MountDevice" && status.Code(ev.Err) == codes.FailedPrecondition
}

func republishFirst(ctx context.Context, s *Stage) error {
	p := newPod(1)
	before, err := s.driverCalls(ctx)
	if err != nil {
		return err
	}
	if err := s.attempt(ctx, func(ctx context.Context) error { return s.Kubelet.Mount(ctx, p.uid, p.volume) }); err != nil {
		return err
	}
	after, err := s.driverCalls(ctx)
	if err != nil {
		return err
	}
	if after.of("NodePublishVolume") == before.of("NodePublishVolume") {
		return errors.New("the repeated NodePublishVolume did not reach the driver")
	}
	s.say.line("gate", "passes it on: an error here could destroy the live mount")
	return s.sayMounts(p)
}

func deletePods(ctx context.Context, s *Stage) error {
	for _, p := range []pod{newPod(1), newPod(2)} {
		if err := s.unmount(ctx, p); err != nil {
			return err
		}
	}
	s.say.line("kubelet", "unpublishes and unstages pv-1; for pod-2 there is nothing to undo")
	s.say.line("gate", "passes both calls on, as always")
	return s.sayCalls(ctx)
}

// waitDeregistered also shows what pods are told from then on, which is kubelet's text, not ours.
func waitDeregistered(ctx context.Context, s *Stage) error {
	if _, err := s.Kubelet.Drivers.Wait(ctx, driverName, false); err != nil {
		return err
	}
	s.say.line("kubelet", "%s is no longer registered and says so itself from now on", driverName)
	p := newPod(3)
	err := s.Kubelet.Mount(ctx, p.uid, p.volume)
	if err == nil {
		return errors.New("a volume was mounted although the driver is not registered")
	}
	s.say.event(err)
	return nil
}

func plugCable(ctx context.Context, s *Stage) error {
	if err := s.node.Plug(rdmanode.RoCE); err != nil {
		return err
	}
	s.say.line("node", "%s: phys_state 5: LinkUp, state 4: ACTIVE, carrier", rdmanode.RoCE)
	return register(ctx, s)
}

func shutDown(ctx context.Context, s *Stage) error {
	if err := s.unmount(ctx, newPod(3)); err != nil {
		return err
	}
	if err := s.Gate.Stop(stopGrace); err != nil {
		return err
	}
	if _, err := s.Kubelet.Drivers.Wait(ctx, driverName, false); err != nil {
		return err
	}
	s.say.line("gate", "SIGTERM: took its sockets away and ended with exit status 0")
	if err := s.Driver.Stop(stopGrace); err != nil {
		return err
	}
	if err := s.leftovers(); err != nil {
		return err
	}
	s.say.line("node", "no mount, no socket and no vol_data.json is left")
	return nil
}

// mount is a pod's start: kubelet tries until it has the volume.
func (s *Stage) mount(ctx context.Context, p pod) error {
	if err := s.attempt(ctx, func(ctx context.Context) error { return s.Kubelet.Mount(ctx, p.uid, p.volume) }); err != nil {
		return err
	}
	s.say.line("kubelet", "%s is staged and published for %s", p.volume.PV, p.uid)
	if err := s.sayMounts(p); err != nil {
		return err
	}
	return s.sayCalls(ctx)
}

// unmount is a pod's end.
func (s *Stage) unmount(ctx context.Context, p pod) error {
	return s.attempt(ctx, func(ctx context.Context) error { return s.Kubelet.Unmount(ctx, p.uid, p.volume) })
}

// attempt retries as kubelet does and shows what it retries after.
func (s *Stage) attempt(ctx context.Context, op func(context.Context) error) error {
	return kubelet.Retry(ctx, func(ctx context.Context) error {
		err := op(ctx)
		if err != nil && ctx.Err() == nil {
			s.say.retry(err)
		}
		return err
	})
}

func (s *Stage) sayTopology(drv kubelet.Driver) {
	var segments []string
	for _, k := range slices.Sorted(maps.Keys(drv.Topology)) {
		segments = append(segments, k+"="+drv.Topology[k])
	}
	if len(segments) == 0 {
		segments = []string{"none"}
	}
	s.say.line("topology", "%s", strings.Join(segments, ", "))
}
