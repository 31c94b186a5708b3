package proxy

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// This test lets random things happen to the real gate between a model of kubelet and a model of a
// driver, and checks after each that no mount is leaked and no live volume refused. The model of
// kubelet follows pkg/volume/csi and pkg/volume/util/operationexecutor of k8s.io/kubernetes: which
// answers are final, when vol_data.json is written and removed, what is called again after a restart.

var (
	modelSequences = flag.Int("model.sequences", 10000, "how many random sequences to run")
	modelSteps     = flag.Int("model.steps", 40, "steps in a sequence")
	modelSeed      = flag.Uint64("model.seed", 0, "run this seed alone and print its trace; 0 runs many")
)

// seedsFile holds seeds that have failed once; they are run first.
const seedsFile = "testdata/model-seeds"

func TestModel(t *testing.T) {
	if *modelSeed != 0 {
		w := newWorld(*modelSeed)
		err := w.run(*modelSteps)
		t.Log("\n" + strings.Join(w.trace, "\n"))
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	kept, err := os.ReadFile(seedsFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var seeds []uint64
	for field := range strings.FieldsSeq(string(kept)) {
		seed, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, seed)
	}
	first := rand.Uint64N(1 << 53)
	for i := range *modelSequences {
		seeds = append(seeds, first+uint64(i)+1)
	}
	seen := map[string]int{}
	for _, seed := range seeds {
		w := newWorld(seed)
		if err := w.run(*modelSteps); err != nil {
			if !slices.Contains(strings.Fields(string(kept)), strconv.FormatUint(seed, 10)) {
				kept = append(kept, fmt.Sprintln(seed)...)
				_ = os.MkdirAll(filepath.Dir(seedsFile), 0o755)
				_ = os.WriteFile(seedsFile, kept, 0o644)
			}
			t.Fatalf("seed %d: %v\n(kept in %s; go test ./pkg/proxy -run Model -model.seed=%d prints the whole trace)\n%s",
				seed, err, seedsFile, seed, strings.Join(w.trace[max(0, len(w.trace)-30):], "\n"))
		}
		for what, n := range w.seen {
			seen[what] += n
		}
	}
	// A model in which one of these never happens proves nothing.
	for _, what := range []string{"FailedPrecondition", "Unavailable unfinished", "Unavailable inherited", "live passes a closed gate",
		"late answer", "gate killed", "gate killed during a call", "driver crash", "kubelet restart", "unstage after a refused stage"} {
		if seen[what] == 0 {
			t.Errorf("never seen: %s", what)
		}
	}
	t.Logf("%d sequences of %d steps: %v", len(seeds), *modelSteps, seen)
}

const modelDriverName = "model.example.com"

// world is everything that one sequence touches.
type world struct {
	rng     *rand.Rand
	trace   []string
	seen    map[string]int
	failure error

	health  *health
	gate    *Server
	driver  *modelDriver
	volumes []*modelVolume
	depth   int // of calls in flight
}

func newWorld(seed uint64) *world {
	w := &world{rng: rand.New(rand.NewPCG(seed, 0)), seen: map[string]int{}, health: &health{h: open()}}
	w.driver = &modelDriver{w: w, up: true, mounts: map[string]string{}, staged: map[string]bool{}, pending: map[string]*pendingCall{},
		kind: stagingKind(w.rng.IntN(int(stagingKinds)))}
	for i := range 3 {
		id := fmt.Sprint("vol-", i)
		w.volumes = append(w.volumes, &modelVolume{id: id, staging: "/k/" + id + "/globalmount", pods: []*modelPod{
			{target: "/k/pods/a/" + id + "/mount"}, {target: "/k/pods/b/" + id + "/mount"}}})
	}
	w.startGate()
	return w
}

func (w *world) startGate() {
	s := &Server{volumes: newVolumes(), replies: newReplies(0), undone: make(chan struct{}, 1), stopping: make(chan struct{}), carry: w.driver.carry}
	s.replies.name = modelDriverName
	s.gate = &gate{GateConfig: GateConfig{Health: w.health.get, NodeName: "n"}, volumes: s.volumes, driverName: s.replies.driverName,
		stopping: s.stopping, mounted: w.driver.mounted}
	var attempts []attempt
	for _, v := range w.volumes {
		attempts = append(attempts, v.files(w.driver.kind)...)
	}
	s.volumes.inherited = newInherited(attempts, nil)
	w.gate = s
}

func (w *world) log(format string, args ...any) {
	w.trace = append(w.trace, strings.Repeat("  ", w.depth)+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	if w.failure == nil {
		w.failure = fmt.Errorf(format, args...)
		w.log("FAILED: %v", w.failure)
	}
}

func (w *world) chance(percent int) bool { return w.rng.IntN(100) < percent }

func (w *world) run(steps int) error {
	for range steps {
		w.step()
		if w.failure != nil {
			return w.failure
		}
	}
	return w.drain()
}

// drain deletes every pod, leaves the gate as it is, open or closed, and wants an empty node.
func (w *world) drain() error {
	w.log("drain, gate open: %v", w.health.get().Open)
	for _, v := range w.volumes {
		for _, p := range v.pods {
			p.wanted = false
		}
	}
	w.driver.up, w.driver.calm = true, true
	for range 20 {
		w.driver.finishAll()
		for _, v := range w.volumes {
			w.reconcile(v)
		}
	}
	for _, v := range w.volumes {
		if v.device != unmounted || v.pods[0].state != unmounted || v.pods[1].state != unmounted {
			w.fail("%s is stuck: device %v, pods %v, %v", v.id, v.device, v.pods[0].state, v.pods[1].state)
		}
	}
	w.check()
	return w.failure
}

func (w *world) step() {
	v := w.volumes[w.rng.IntN(len(w.volumes))]
	switch n := w.rng.IntN(100); {
	case n < 15:
		p := v.pods[w.rng.IntN(2)]
		p.wanted = !p.wanted
		w.log("%s: pod at %s wanted: %v", v.id, p.target, p.wanted)
	case n < 70:
		w.reconcile(v)
	case n < 78:
		if w.health.get().Open {
			w.health.set(closed())
		} else {
			w.health.set(open())
		}
		w.log("gate open: %v", w.health.get().Open)
	case n < 84:
		w.driver.finishAll()
	case n < 88:
		w.driver.crash()
	case n < 92:
		w.kill()
	case n < 96:
		w.restartKubelet()
	default:
		w.republish(v)
	}
	w.check()
}

func (w *world) kill() {
	w.seen["gate killed"]++
	w.log("gate killed and restarted")
	if w.depth > 0 {
		w.seen["gate killed during a call"]++
	}
	w.startGate()
}

// check is the first invariant: what kubelet has forgotten, the driver does not hold.
func (w *world) check() {
	for _, v := range w.volumes {
		if v.busy {
			continue
		}
		if v.device == unmounted && w.driver.staged[v.id] {
			w.fail("%s: kubelet has forgotten it, the driver holds it staged", v.id)
		}
		for _, p := range v.pods {
			if _, mounted := w.driver.mounts[p.target]; p.state == unmounted && mounted {
				w.fail("%s: kubelet has forgotten %s, the driver holds it mounted", v.id, p.target)
			}
		}
		if op := w.driver.pending[v.id]; op != nil && v.device == unmounted && v.pods[0].state == unmounted && v.pods[1].state == unmounted {
			w.fail("%s: kubelet has forgotten it, a call is still with the driver", v.id)
		}
	}
}

// Kubelet.

type mountState int

const (
	unmounted mountState = iota
	uncertain
	mounted_
)

func (s mountState) String() string { return [...]string{"unmounted", "uncertain", "mounted"}[s] }

type modelPod struct {
	target  string
	wanted  bool
	state   mountState
	file    bool // vol_data.json
	remount bool // kubelet has been restarted and has not called again
}

type modelVolume struct {
	id, staging string
	device      mountState
	file        bool
	refused     bool // the newest stage was refused as unavailable, for what is seen
	remount     bool
	busy        bool // kubelet has one operation at a time for a volume
	pods        []*modelPod
}

// files are the vol_data.json that a starting gate finds.
func (v *modelVolume) files(kind stagingKind) []attempt {
	var found []attempt
	if kind == block {
		if v.file || v.pods[0].file || v.pods[1].file {
			found = append(found, attempt{driver: modelDriverName, volume: v.id, block: true, paths: []string{v.staging, v.pods[0].target, v.pods[1].target}})
		}
		return found
	}
	if v.file {
		found = append(found, attempt{driver: modelDriverName, volume: v.id, paths: []string{v.staging}})
	}
	for _, p := range v.pods {
		if p.file {
			found = append(found, attempt{driver: modelDriverName, volume: v.id, paths: []string{p.target}, published: true})
		}
	}
	return found
}

// reconcile does the next thing that kubelet would do for a volume.
func (w *world) reconcile(v *modelVolume) {
	if v.busy {
		return
	}
	v.busy = true
	defer func() { v.busy = false }()
	for _, p := range v.pods {
		if !p.wanted && p.state != unmounted {
			if w.call(csi.Node_NodeUnpublishVolume_FullMethodName, v, p.target) == nil {
				p.state, p.file = unmounted, false
			}
			return
		}
	}
	wanted := slices.ContainsFunc(v.pods, func(p *modelPod) bool { return p.wanted })
	switch {
	case wanted && (v.device != mounted_ || v.remount):
		v.file = true
		err := w.call(csi.Node_NodeStageVolume_FullMethodName, v, v.staging)
		v.refused = status.Code(err) == codes.Unavailable
		v.device = after(v.device, err)
		if err == nil {
			v.remount = false
		} else if final(err) && !w.driver.visible(v.staging) {
			v.file = false
		}
	case wanted:
		for _, p := range v.pods {
			if p.wanted && (p.state != mounted_ || p.remount) {
				w.publish(v, p)
				return
			}
		}
	case v.device != unmounted:
		if w.call(csi.Node_NodeUnstageVolume_FullMethodName, v, v.staging) == nil {
			if v.refused {
				w.seen["unstage after a refused stage"]++
			}
			v.device, v.file, v.remount, v.refused = unmounted, false, false, false
		}
	}
}

func (w *world) publish(v *modelVolume, p *modelPod) {
	p.file = true
	err := w.call(csi.Node_NodePublishVolume_FullMethodName, v, p.target)
	p.state = after(p.state, err)
	if err == nil {
		p.remount = false
	} else if final(err) && !w.driver.visible(p.target) {
		p.file = false
	}
}

// after is what kubelet believes after an answer to Stage or Publish: only what was uncertain
// becomes unmounted by a final error.
func after(before mountState, err error) mountState {
	switch {
	case err == nil:
		return mounted_
	case before == mounted_:
		return mounted_
	case final(err):
		return unmounted
	default:
		return uncertain
	}
}

// republish is what requiresRepublish makes kubelet do for a live target.
func (w *world) republish(v *modelVolume) {
	for _, p := range v.pods {
		if !v.busy && p.wanted && p.state == mounted_ && v.device == mounted_ {
			v.busy = true
			w.publish(v, p)
			v.busy = false
		}
	}
}

// restartKubelet forgets what is in memory and finds the files again.
func (w *world) restartKubelet() {
	if w.depth > 0 {
		return // its calls in flight would have to be forgotten too
	}
	w.seen["kubelet restart"]++
	w.log("kubelet restarted")
	for _, v := range w.volumes {
		if v.device != unmounted {
			v.device, v.remount = uncertain, true
		}
		for _, p := range v.pods {
			if p.state != unmounted {
				p.state, p.remount = uncertain, true
			}
		}
	}
}

// call goes through the real gate, and checks its answer against what the driver holds.
func (w *world) call(method string, v *modelVolume, path string) error {
	gate, open := w.gate, w.health.get().Open
	live, finally := w.driver.holds(method, v, path)
	reached := w.driver.reached
	w.log("%s %s at %s", strings.TrimPrefix(method, "/csi.v1.Node/"), v.id, path)
	err := w.through(gate, method, v, path)
	if w.gate != gate {
		err = status.Error(codes.Unavailable, "the gate was killed")
	}
	w.log("→ %v", status.Code(err))

	makes := method == csi.Node_NodeStageVolume_FullMethodName || method == csi.Node_NodePublishVolume_FullMethodName
	refused := makes && strings.HasPrefix(status.Convert(err).Message(), "RDMA not usable")
	switch {
	case !refused:
		if makes && !open && err == nil {
			w.seen["live passes a closed gate"]++
		}
		return err
	case reached != w.driver.reached && w.depth == 0:
		w.fail("a refused call reached the driver")
	case live:
		w.fail("%s of %s was refused although mounted: %v", method, v.id, err)
	case finally && status.Code(err) == codes.FailedPrecondition:
		w.fail("%s of %s was finally refused although the driver holds it", method, v.id)
	}
	switch message := err.Error(); {
	case status.Code(err) == codes.FailedPrecondition:
		w.seen["FailedPrecondition"]++
	case strings.Contains(message, "before this gate started"):
		w.seen["Unavailable inherited"]++
	default:
		w.seen["Unavailable unfinished"]++
	}
	return err
}

func (w *world) through(gate *Server, method string, v *modelVolume, path string) error {
	var f frame
	switch method {
	case csi.Node_NodeStageVolume_FullMethodName:
		f, _ = proto.Marshal(&csi.NodeStageVolumeRequest{VolumeId: v.id, StagingTargetPath: path, VolumeCapability: &csi.VolumeCapability{}})
		return gate.mount(&modelStream{request: f}, method, decodeStage)
	case csi.Node_NodePublishVolume_FullMethodName:
		f, _ = proto.Marshal(&csi.NodePublishVolumeRequest{VolumeId: v.id, TargetPath: path, VolumeCapability: &csi.VolumeCapability{}})
		return gate.mount(&modelStream{request: f}, method, decodePublish)
	case csi.Node_NodeUnstageVolume_FullMethodName:
		f, _ = proto.Marshal(&csi.NodeUnstageVolumeRequest{VolumeId: v.id, StagingTargetPath: path})
		return gate.unmount(&modelStream{request: f}, method, decodeUnstage)
	default:
		f, _ = proto.Marshal(&csi.NodeUnpublishVolumeRequest{VolumeId: v.id, TargetPath: path})
		return gate.unmount(&modelStream{request: f}, method, decodeUnpublish)
	}
}

// The driver.

// stagingKind is what a driver leaves at the staging path.
type stagingKind int

const (
	mountAt stagingKind = iota
	mountBelow
	loginOnly // nothing
	block     // nothing, and kubelet keeps one file for the whole volume
	stagingKinds
)

type modelDriver struct {
	w       *world
	kind    stagingKind
	up      bool
	calm    bool // no more trouble
	reached int

	staged  map[string]bool         // by volume
	mounts  map[string]string       // path to volume
	pending map[string]*pendingCall // by volume
}

// pendingCall is one that the driver has not ended, and for whose answer perhaps nobody waits.
type pendingCall struct{ method, path string }

// carry is the way to the driver.
func (d *modelDriver) carry(_ context.Context, _ grpc.ServerStream, method string, request frame) (frame, error) {
	return nil, d.serve(method, request)
}

// serve answers a call. Other things may happen meanwhile.
func (d *modelDriver) serve(method string, request frame) error {
	w := d.w
	if !d.up {
		return status.Error(codes.Unavailable, "CSI driver not reachable")
	}
	d.reached++
	id, path := identify(method, request)
	if d.pending[id] != nil {
		return status.Error(codes.Aborted, "an operation is pending")
	}
	if w.depth < 2 && !d.calm && w.chance(15) {
		w.depth++
		d.pending[id] = &pendingCall{method, path} // a crash in between ends it
		for range 1 + w.rng.IntN(3) {
			w.step()
		}
		w.depth--
		if d.pending[id] == nil {
			return status.Error(codes.Unavailable, "the connection broke")
		}
		delete(d.pending, id)
	}
	switch n := w.rng.IntN(100); {
	case d.calm || n < 60:
		d.apply(method, id, path)
		return nil
	case n < 70: // the caller runs out of patience, the driver goes on
		d.pending[id] = &pendingCall{method, path}
		return status.Error(codes.DeadlineExceeded, "too slow")
	case n < 78: // done, but the answer is lost
		d.apply(method, id, path)
		return status.Error(codes.Unavailable, "the connection broke")
	case n < 88:
		return status.Error(codes.Aborted, "not now")
	case d.has(method, id, path): // a driver answers a repeated call with success
		return nil
	default:
		return status.Error(codes.Internal, "failed, and cleaned up")
	}
}

// has says whether a call would change nothing.
func (d *modelDriver) has(method, id, path string) bool {
	switch method {
	case csi.Node_NodeStageVolume_FullMethodName:
		return d.staged[id]
	case csi.Node_NodePublishVolume_FullMethodName:
		return d.mounts[path] != ""
	default:
		return false
	}
}

func (d *modelDriver) apply(method, id, path string) {
	switch method {
	case csi.Node_NodeStageVolume_FullMethodName:
		d.staged[id] = true
		switch d.kind {
		case mountAt:
			d.mounts[path] = id
		case mountBelow:
			d.mounts[path+"/share"] = id
		}
	case csi.Node_NodeUnstageVolume_FullMethodName:
		delete(d.staged, id)
		delete(d.mounts, path)
		delete(d.mounts, path+"/share")
	case csi.Node_NodePublishVolume_FullMethodName:
		d.mounts[path] = id
	default:
		delete(d.mounts, path)
	}
}

// finishAll ends the calls for which nobody waits.
func (d *modelDriver) finishAll() {
	if d.w.depth > 0 {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(d.pending)) {
		d.w.seen["late answer"]++
		d.w.log("the driver ends the pending call of %s", id)
		d.finish(id, 70)
	}
}

// finish ends a pending call with success as likely as percent says.
func (d *modelDriver) finish(id string, percent int) {
	if c := d.pending[id]; d.w.chance(percent) {
		d.apply(c.method, id, c.path)
	}
	delete(d.pending, id)
}

// crash ends every call and either begins or ends an absence. What is mounted stays: it is the
// kernel's.
func (d *modelDriver) crash() {
	d.w.seen["driver crash"]++
	d.up = !d.up
	d.w.log("driver up: %v", d.up)
	for _, id := range slices.Sorted(maps.Keys(d.pending)) {
		d.finish(id, 50)
	}
}

func (d *modelDriver) visible(path string) bool {
	for mount := range d.mounts {
		if atOrBelow(mount, path) {
			return true
		}
	}
	return false
}

// mounted stands for the mount table.
func (d *modelDriver) mounted(places []string) (bool, error) {
	return slices.ContainsFunc(places, d.visible), nil
}

// holds says whether a call is for something that is mounted, and whether the driver would lose
// something if it were finally refused.
func (d *modelDriver) holds(method string, v *modelVolume, path string) (live, finally bool) {
	live = d.visible(path)
	if method == csi.Node_NodeStageVolume_FullMethodName {
		for _, p := range v.pods {
			live = live || d.visible(p.target)
		}
		return live, live || d.staged[v.id] || d.isPending(method, v.id, path)
	}
	return live, live || d.isPending(method, v.id, path)
}

func (d *modelDriver) isPending(method, id, path string) bool {
	c := d.pending[id]
	return c != nil && *c == (pendingCall{method, path})
}

func identify(method string, f frame) (id, path string) {
	var r *request
	switch method {
	case csi.Node_NodeStageVolume_FullMethodName:
		r = decodeStage(f)
	case csi.Node_NodePublishVolume_FullMethodName:
		r = decodePublish(f)
	case csi.Node_NodeUnstageVolume_FullMethodName:
		r = decodeUnstage(f)
	default:
		r = decodeUnpublish(f)
	}
	return r.volume, r.path
}

// modelStream hands the gate one request.
type modelStream struct{ request frame }

func (s *modelStream) Context() context.Context     { return context.Background() }
func (s *modelStream) SetHeader(metadata.MD) error  { return nil }
func (s *modelStream) SendHeader(metadata.MD) error { return nil }
func (s *modelStream) SetTrailer(metadata.MD)       {}
func (s *modelStream) SendMsg(any) error            { return nil }
func (s *modelStream) RecvMsg(m any) error {
	if s.request == nil {
		return io.EOF
	}
	*m.(*frame), s.request = s.request, nil
	return nil
}
