package story

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

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

// refuseSecond lets a probe or two go by and then tries until it was refused twice in the same words,
// without which kubelet could not fold the events into one. A pod that is quicker than the next probe
// still gets its volume, and one that comes while the gate restarts is told other things.
func refuseSecond(ctx context.Context, s *Stage) error {
	p := newPod(2)
	for first := error(nil); ; {
		select {
		case <-ctx.Done():
			return errors.New("the volume was never refused twice in the same words")
		case <-time.After(2 * probeInterval):
		}
		before, err := s.driverCalls(ctx)
		if err != nil {
			return err
		}
		switch err := s.Kubelet.Mount(ctx, p.uid, p.volume); {
		case err == nil:
			if err := s.unmount(ctx, p); err != nil {
				return err
			}
		case !refused(err):
			s.say.retry(err)
		case first == nil, err.Error() != first.Error():
			first = err
			s.say.event(err)
			if err := s.notCalledSince(ctx, before); err != nil {
				return err
			}
		default:
			s.say.line("kubelet", "tries again and is told the same, word for word: one event")
			return nil
		}
	}
}

// notCalledSince is an error if the driver was asked to stage.
func (s *Stage) notCalledSince(ctx context.Context, before counts) error {
	after, err := s.driverCalls(ctx)
	if err != nil {
		return err
	}
	if after.of("NodeStageVolume") != before.of("NodeStageVolume") {
		return errors.New("the driver was called for the volume that the gate refused")
	}
	s.say.line("driver", "was not called: NodeStageVolume still %d", after.of("NodeStageVolume"))
	return nil
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
	if err := s.awaitRegistrationSocket(ctx); err != nil {
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

// awaitRegistrationSocket returns once somebody accepts on it. A gate that was killed leaves its
// socket, and the next one takes that away as soon as the driver has told its name: whoever ends the
// next one sooner leaves kubelet with a driver that is not there.
func (s *Stage) awaitRegistrationSocket(ctx context.Context) error {
	path := filepath.Join(s.Kubelet.RegistryDir(), driverName+"-reg.sock")
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(probeInterval):
		}
	}
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
