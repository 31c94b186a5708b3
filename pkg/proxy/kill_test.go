package proxy

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// The steps of a forwarded Stage or Publish, in order. A gate that is killed at one has done all of
// the ones before.
const (
	receiving = iota + 1
	deciding
	handingOver // the call is noted as in flight
	answered    // the driver has done it, the gate has not noted so
	replying    // the gate has noted it, the caller does not know
	steps
)

// TestAGateThatIsKilledAtAnyStepLeaksNothing kills the gate at each step, starts the next one on what
// kubelet's directories say, with the gate open or closed, and lets kubelet go on: first it calls
// again, then it takes the volume down.
func TestAGateThatIsKilledAtAnyStepLeaksNothing(t *testing.T) {
	for kind := range stagingKinds {
		for _, method := range []string{csi.Node_NodeStageVolume_FullMethodName, csi.Node_NodePublishVolume_FullMethodName} {
			for step := receiving; step < steps; step++ {
				for _, openAfter := range []bool{true, false} {
					for _, again := range []bool{true, false} {
						name := fmt.Sprintf("kind=%d/%s/step=%d/open=%v/again=%v", kind, method[len("/csi.v1.Node/"):], step, openAfter, again)
						t.Run(name, func(t *testing.T) { killAt(t, kind, method, step, openAfter, again) })
					}
				}
			}
		}
	}
}

func killAt(t *testing.T, kind stagingKind, method string, step int, openAfter, again bool) {
	w := newWorld(1)
	w.driver.kind, w.driver.calm = kind, true
	w.startGate()
	v := w.volumes[0]
	p := v.pods[0]
	p.wanted = true
	if method == csi.Node_NodePublishVolume_FullMethodName {
		w.reconcile(v) // staged before
	}

	// Kubelet writes its file, calls, and gets no answer.
	path := v.staging
	if method == csi.Node_NodeStageVolume_FullMethodName {
		v.file, v.device = true, uncertain
	} else {
		p.file, p.state, path = true, uncertain, p.target
	}
	died := make(chan int)
	go func() {
		at := 0
		defer func() { died <- at }()
		kill := func(s int) {
			if s == step {
				at = s
				runtime.Goexit()
			}
		}
		w.mountUntil(kill, method, v, path)
	}()
	if at := <-died; at != step {
		t.Fatalf("the gate died at step %d, want %d", at, step)
	}

	if w.health.set(open()); !openAfter {
		w.health.set(closed())
	}
	w.kill()
	if again {
		w.reconcile(v)
	}
	if err := w.drain(); err != nil {
		for _, line := range w.trace {
			t.Log(line)
		}
		t.Fatal(err)
	}
	if len(w.driver.mounts)+len(w.driver.staged) > 0 {
		t.Errorf("left behind: %v %v", w.driver.mounts, w.driver.staged)
	}
}

// mountUntil makes one call in which kill is asked at each step.
func (w *world) mountUntil(kill func(int), method string, v *modelVolume, path string) {
	s := w.gate
	s.gate.Health = func() *probe.Health { kill(deciding); return w.health.get() }
	s.carry = func(ctx context.Context, caller grpc.ServerStream, method string, request frame) (frame, error) {
		kill(handingOver)
		reply, err := w.driver.carry(ctx, caller, method, request)
		kill(answered)
		return reply, err
	}
	f, decode := frame(nil), decodeStage
	if method == csi.Node_NodeStageVolume_FullMethodName {
		f, _ = proto.Marshal(&csi.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: path, VolumeCapability: &csi.VolumeCapability{}})
	} else {
		f, _ = proto.Marshal(&csi.NodePublishVolumeRequest{VolumeId: v.id, TargetPath: path, VolumeCapability: &csi.VolumeCapability{}})
		decode = decodePublish
	}
	_ = s.mount(&killStream{modelStream{request: f}, kill}, method, decode)
}

type killStream struct {
	modelStream
	kill func(int)
}

func (s *killStream) RecvMsg(m any) error { s.kill(receiving); return s.modelStream.RecvMsg(m) }
func (s *killStream) SendMsg(m any) error { s.kill(replying); return s.modelStream.SendMsg(m) }
