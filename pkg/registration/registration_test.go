package registration

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/socket"
)

// plugin stands for the driver, its volumes and its topology.
type plugin struct {
	name     string
	ready    error
	volumes  int
	listing  error
	counted  int
	undone   chan struct{}
	refused  []string
	injected string
	frozen   bool
	grown    bool
}

func (p *plugin) DriverName(context.Context) (string, error) { return p.name, nil }
func (p *plugin) Ready(context.Context) error                { return p.ready }
func (p *plugin) Volumes() (int, error)                      { p.counted++; return p.volumes, p.listing }
func (p *plugin) Undone() <-chan struct{}                    { return p.undone }
func (p *plugin) FreezeTopology() map[string]string          { p.frozen, p.grown = true, false; return nil }
func (p *plugin) TopologyHasGrown() bool                     { return p.grown }
func (p *plugin) ThawTopology()                              { p.frozen = false }
func (p *plugin) RefuseTopologyKey(key string) bool {
	p.refused = append(p.refused, key)
	return key == p.injected
}

// rig drives a Registrar step by step on a clock of its own, with real sockets.
type rig struct {
	*Registrar
	*plugin
	t   *testing.T
	now time.Time
	h   probe.Health
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "reg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &plugin{name: "rdma.example.com", undone: make(chan struct{}, 1), injected: "rdma.example.com/rdma-fabric"}
	c := Config{
		Dir: dir, Endpoint: "/var/lib/kubelet/plugins/rdma.example.com/csi.sock", NodeName: "worker-7",
		Timeout: time.Second, VerdictTimeout: time.Second,
		Policy: Drained, Threshold: 3, DeregisterJitter: 30 * time.Second, RegisterJitter: 10 * time.Second,
		Driver: p, Volumes: p, Topology: p,
	}
	if change != nil {
		change(&c)
	}
	r := &rig{Registrar: New(c), plugin: p, t: t, now: time.Date(2026, 11, 30, 18, 0, 0, 0, time.UTC)}
	r.Registrar.random = func(d time.Duration) time.Duration { return d / 2 }
	r.Registrar.Health = func() *probe.Health { return &r.h }
	r.Registrar.name = p.name
	r.prepare()
	t.Cleanup(r.server.Stop)
	t.Cleanup(r.keeper.Remove)
	return r
}

func (r *rig) healthy() {
	r.h = probe.Health{Result: probe.Result{Verdict: probe.Healthy}, Open: true, Decided: true}
}

func (r *rig) unhealthy() {
	r.h = probe.Health{Result: probe.Result{Verdict: probe.Unhealthy}, Decided: true, UnhealthyTicks: r.h.UnhealthyTicks}
}

// run lets time pass second by second; an unhealthy node has one more tick each.
func (r *rig) run(d time.Duration) {
	for range int(d / time.Second) {
		r.now = r.now.Add(time.Second)
		if r.h.Verdict == probe.Unhealthy {
			r.h.UnhealthyTicks++
		}
		r.step(r.t.Context(), r.now, &r.h)
	}
}

func (r *rig) want(what string, published bool) {
	r.t.Helper()
	_, err := os.Lstat(r.path())
	if (err == nil) != published || r.published != published || r.frozen != published {
		r.t.Errorf("%s: socket %v, published %v, topology frozen %v; want %v", what, err == nil, r.published, r.frozen, published)
	}
}

func (r *rig) client() registerapi.RegistrationClient {
	r.t.Helper()
	conn, err := grpc.NewClient("unix:"+r.path(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return registerapi.NewRegistrationClient(conn)
}

func TestGetInfo(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	info, err := r.client().GetInfo(t.Context(), &registerapi.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if info.GetType() != "CSIPlugin" || info.GetName() != "rdma.example.com" || info.GetEndpoint() != r.Endpoint ||
		len(info.GetSupportedVersions()) != 1 || info.GetSupportedVersions()[0] != "1.0.0" {
		t.Errorf("%v", info)
	}
	if filepath.Base(r.path()) != "rdma.example.com-reg.sock" {
		t.Errorf("socket %s", r.path())
	}
}

func TestTheFirstRegistrationWaitsForNothing(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	r.want("first step", true)
}

func TestTroubleThatLastsDeregistersAfterThresholdAndJitter(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	r.unhealthy()
	r.run(2 * time.Second)
	r.want("below the threshold", true)
	r.run(15 * time.Second) // the threshold, and half of the 30 s of jitter but one
	r.want("waiting", true)
	r.run(time.Second)
	r.want("after the jitter", false)
	r.healthy()
	r.run(5 * time.Second)
	r.want("waiting half of 10 s", false)
	r.run(time.Second)
	r.want("registered again", true)
}

func TestRecoveryDuringTheJitterCancelsIt(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	r.unhealthy()
	r.run(10 * time.Second)
	r.healthy()
	r.run(time.Minute)
	r.want("healthy again", true)
	if len(r.deregistrations) != 0 {
		t.Error("deregistered meanwhile")
	}
}

func TestDrainedStaysRegisteredUntilTheLastVolumeIsGone(t *testing.T) {
	r := newRig(t, nil)
	r.plugin.volumes = 2
	r.healthy()
	r.run(time.Second)
	r.unhealthy()
	r.run(10 * time.Minute)
	r.want("volumes are there", true)
	r.plugin.volumes = 0
	r.run(10*time.Second + 15*time.Second)
	r.want("the last one is gone", false)
	r.plugin.volumes = 1
	r.run(11 * time.Second)
	r.want("one has turned up: back at the next look, without jitter", true)
}

func TestAnUndoneVolumeIsLookedForASecondLater(t *testing.T) {
	r := newRig(t, func(c *Config) { c.DeregisterJitter = 0 })
	r.plugin.volumes = 1
	r.healthy()
	r.run(time.Second)
	r.unhealthy()
	r.run(4 * time.Second)
	r.plugin.volumes = 0
	r.Registrar.undone(r.now)
	r.run(time.Second)
	r.want("a second after the last Unstage", false)
}

func TestVolumesThatCannotBeCountedKeepTheRegistration(t *testing.T) {
	r := newRig(t, nil)
	r.listing = errors.New("input/output error")
	r.healthy()
	r.run(time.Second)
	r.unhealthy()
	r.run(10 * time.Minute)
	r.want("nobody knows", true)
}

func TestVolumesAreNotCountedWhileAllIsWell(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Hour)
	if r.counted != 0 {
		t.Errorf("counted %d times", r.counted)
	}
}

func TestPolicies(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(*Config)
		volumes int
		want    bool
	}{
		{"always ignores volumes", func(c *Config) { c.Policy = Always }, 1, false},
		{"never stays", func(c *Config) { c.Policy = Never }, 0, true},
		{"observe stays", func(c *Config) { c.Observe = true }, 0, true},
	} {
		r := newRig(t, tc.change)
		r.plugin.volumes = tc.volumes
		r.healthy()
		r.run(time.Second)
		r.unhealthy()
		r.run(time.Minute)
		r.want(tc.name, tc.want)
	}
}

func TestDeadHardwareAtTheStartIsNotRegisteredAtAll(t *testing.T) {
	r := newRig(t, nil)
	r.unhealthy()
	r.run(time.Minute)
	r.want("no volumes", false)
	if r.everPublished {
		t.Error("was registered for a while")
	}
	r.plugin.volumes = 1
	r.run(10 * time.Second)
	r.want("a volume has turned up", true)
}

func TestUnknownHardwareAtTheStartIsRegistered(t *testing.T) {
	r := newRig(t, nil)
	r.run(time.Second)
	r.want("no verdict", true)
	r.unhealthy()
	r.run(20 * time.Second) // the first verdict, then the jitter
	r.want("the first verdict is unhealthy", false)
}

func TestAtMostFourDeregistrationsAnHour(t *testing.T) {
	r := newRig(t, func(c *Config) { c.DeregisterJitter, c.RegisterJitter = 0, 0 })
	r.healthy()
	r.run(time.Second)
	flap := func() {
		r.unhealthy()
		r.h.UnhealthyTicks = 0
		r.run(4 * time.Second)
	}
	for range 4 {
		flap()
		r.want("flap", false)
		r.healthy()
		r.run(time.Second)
		r.want("back", true)
	}
	flap()
	r.run(58 * time.Minute)
	r.want("the fifth waits, registered and gated", true)
	r.run(2 * time.Minute)
	r.want("an hour after the first one", false)
}

func TestARemovedSocketIsPutBack(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	if err := os.Remove(r.path()); err != nil {
		t.Fatal(err)
	}
	r.run(time.Second)
	r.want("a second later", true)
	if n := r.Stats().Registrations; n != 2 {
		t.Errorf("%d sockets put in place, want 2", n)
	}
}

func TestASocketThatCannotBePutBackIsNotRegistered(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	r.notify(r.now, &registerapi.RegistrationStatus{PluginRegistered: true})
	r.run(time.Second)
	if st := r.Stats(); !st.Registered || !st.Confirmed {
		t.Fatalf("registered %v, confirmed %v", st.Registered, st.Confirmed)
	}
	if err := os.RemoveAll(r.Dir); err != nil {
		t.Fatal(err)
	}
	r.run(5 * time.Second)
	if st := r.Stats(); st.Registered || st.Confirmed || !st.Wanted || st.Obstacle == "" {
		t.Errorf("registered %v, confirmed %v, wanted %v, obstacle %q", st.Registered, st.Confirmed, st.Wanted, st.Obstacle)
	}
}

func TestKubeletThatTakesNoNoticeIsAnObstacle(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(unheardWarning - time.Second)
	if st := r.Stats(); st.Confirmed || st.Obstacle != "" {
		t.Errorf("too soon: confirmed %v, obstacle %q", st.Confirmed, st.Obstacle)
	}
	r.run(2 * time.Second)
	if st := r.Stats(); st.Confirmed || !strings.Contains(st.Obstacle, "plugins_registry") {
		t.Errorf("confirmed %v, obstacle %q", st.Confirmed, st.Obstacle)
	}
	r.notify(r.now, &registerapi.RegistrationStatus{PluginRegistered: true})
	r.run(time.Second)
	if st := r.Stats(); !st.Confirmed || st.Obstacle != "" {
		t.Errorf("confirmed %v, obstacle %q", st.Confirmed, st.Obstacle)
	}
}

func TestTheNewestCountDecides(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	r.unhealthy()
	for r.due.IsZero() {
		r.run(time.Second)
	}
	for !r.lookAt.After(r.due) { // the last regular count before the change
		r.run(time.Second)
	}
	r.plugin.volumes = 1
	r.run(20 * time.Second)
	if n := r.Stats().Deregistrations; n != 0 {
		t.Errorf("deregistered %d times with a volume", n)
	}
}

func TestWhoShallNotBeRegisteredMeetsNoObstacle(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	r.notify(r.now, &registerapi.RegistrationStatus{Error: "no\nway"})
	if got := r.Stats().Obstacle; got != "kubelet did not register the driver: no?way" {
		t.Errorf("obstacle %q", got)
	}
	r.unhealthy()
	r.run(5 * time.Minute)
	if st := r.Stats(); st.Wanted || st.Obstacle != "" {
		t.Errorf("wanted %v, obstacle %q", st.Wanted, st.Obstacle)
	}
}

func TestADeadSocketInOurPlaceIsNoSuccessor(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	next := socket.NewKeeper(r.path(), func(l net.Listener) error { return l.Close() })
	if err := next.Put(); err != nil {
		t.Fatal(err)
	}
	for !socket.Dead(r.path()) { // its process has died
		runtime.Gosched()
	}
	r.run(time.Second)
	r.want("a second later", true)
	if r.keeper.State() != socket.Ours {
		t.Error("the dead socket is still there")
	}
}

// owner is another process that serves our registration socket.
func owner(t *testing.T, path, driver string) *socket.Keeper {
	t.Helper()
	s := grpc.NewServer()
	registerapi.RegisterRegistrationServer(s, &service{info: &registerapi.PluginInfo{Name: driver}})
	k := socket.NewKeeper(path, func(l net.Listener) error { return s.Serve(l) })
	if err := k.Put(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	t.Cleanup(k.Remove)
	return k
}

// leaveDead leaves a socket on which nobody listens.
func leaveDead(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
}

func TestALiveOwnerIsNotFought(t *testing.T) {
	r := newRig(t, nil)
	other := owner(t, r.path(), "rdma.example.com")
	r.healthy()
	r.run(time.Minute)
	if r.published || other.State() != socket.Ours {
		t.Error("the other's socket was replaced")
	}
	other.Remove()
	r.run(time.Second)
	r.want("the owner has gone", true)
}

func TestADeadOwnersSocketIsRemovedWhenTheDriverShallNotBeRegistered(t *testing.T) {
	r := newRig(t, nil)
	other := owner(t, r.path(), "rdma.example.com")
	r.unhealthy()
	r.run(time.Minute)
	if other.State() != socket.Ours {
		t.Fatal("a live owner's socket was removed")
	}
	other.Remove()
	leaveDead(t, r.path())
	r.run(ownerInterval)
	r.want("the owner has died", false)
	r.healthy()
	r.run(10 * time.Second)
	r.want("healthy again", true)
}

func TestASuccessorTakesOver(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	next := owner(t, r.path(), "rdma.example.com")
	r.run(time.Minute)
	if r.published || next.State() != socket.Ours {
		t.Error("the successor's socket was replaced")
	}
	next.Remove()
	r.run(time.Second)
	r.want("the successor has gone", true)
}

func TestAnotherDriversSocketUnderOurNameIsReplaced(t *testing.T) {
	r := newRig(t, nil)
	owner(t, r.path(), "impostor.example.com")
	r.healthy()
	r.run(time.Second)
	r.want("first step", true)
}

func TestADeadSocketIsRemovedOnceTheNameIsKnown(t *testing.T) {
	r := newRig(t, nil)
	leaveDead(t, r.path())
	r.ready = errors.New("NodeGetInfo fails")
	if err := r.meet(t.Context(), time.Second); err == nil {
		t.Error("met a driver that is not ready")
	}
	if _, err := os.Lstat(r.path()); err == nil {
		t.Error("the dead socket is still there")
	}
}

func TestANameThatIsNoFileNameIsNotTaken(t *testing.T) {
	for _, name := range []string{"../../etc/passwd", "a/b", "", ".hidden", "end-", strings.Repeat("x", 64), "two\nlines"} {
		r := newRig(t, nil)
		r.plugin.name = name
		if err := r.meet(t.Context(), time.Second); err == nil {
			t.Errorf("%q was taken", name)
		}
	}
}

func TestNotifyRegistrationStatusNeverFails(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	client := r.client()
	for range 50 { // more than anybody reads
		if _, err := client.NotifyRegistrationStatus(t.Context(), &registerapi.RegistrationStatus{Error: "no"}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestARefusedRegistrationGetsAFreshSocketAfterABackoffThatGrows(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	for _, backoff := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		before, err := os.Lstat(r.path())
		if err != nil {
			t.Fatal(err)
		}
		// A link keeps the old inode, so that the new socket cannot get its number.
		held := r.path() + ".held"
		if err := os.Link(r.path(), held); err != nil {
			t.Fatal(err)
		}
		r.notify(r.now, &registerapi.RegistrationStatus{Error: "NodeGetInfo failed"})
		r.run(backoff - time.Second)
		if now, err := os.Lstat(r.path()); err != nil || !os.SameFile(before, now) {
			t.Errorf("back-off %v: the socket changed too soon (%v)", backoff, err)
		}
		r.run(time.Second)
		if now, err := os.Lstat(r.path()); err != nil || os.SameFile(before, now) {
			t.Errorf("back-off %v: no fresh socket (%v)", backoff, err)
		}
		_ = os.Remove(held)
	}
	r.notify(r.now, &registerapi.RegistrationStatus{PluginRegistered: true})
	if r.refusals != 0 {
		t.Error("a success does not end the back-off")
	}
}

func TestRefusalsThatKeepComingDoNotPutTheFreshSocketOff(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	for range 5 {
		r.notify(r.now, &registerapi.RegistrationStatus{Error: "no"})
		r.run(time.Second)
	}
	if st := r.Stats(); st.Registrations < 3 || st.Refusals != 5 {
		t.Errorf("%d sockets after %d refusals in 5 s", st.Registrations, st.Refusals)
	}
}

func TestATopologyCollisionLeavesTheKeyOut(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	r.notify(r.now, &registerapi.RegistrationStatus{Error: `RegisterPlugin error -- plugin registration failed with err: error updating CSINode object with CSI driver node info: error updating node: timed out; caused by: detected topology value collision: driver reported "rdma.example.com/rdma-fabric":"00a1" but existing label is "rdma.example.com/rdma-fabric":"00b2"`})
	if len(r.refused) != 1 || r.refused[0] != "rdma.example.com/rdma-fabric" {
		t.Errorf("refused keys %v", r.refused)
	}
	r.run(time.Second)
	r.want("registers again", true)
}

// A driver that loads minutes after boot must not leave its node without topology for ever.
func TestMoreTopologyThanWasRegisteredGetsAFreshSocket(t *testing.T) {
	r := newRig(t, nil)
	r.run(time.Second) // registered before there is a verdict
	r.grown = true
	r.run(20 * time.Second)
	if st := r.Stats(); st.Registrations != 1 {
		t.Errorf("%d registrations while the gate is closed", st.Registrations)
	}
	r.healthy()
	r.run(6 * time.Second) // half of the jitter
	if st := r.Stats(); st.Registrations != 2 || r.grown {
		t.Errorf("%d registrations", st.Registrations)
	}
	for range 10 {
		r.grown = true
		r.run(time.Minute)
	}
	if st := r.Stats(); st.Registrations != 1+maxPerHour {
		t.Errorf("%d registrations in ten minutes in which there was ever more", st.Registrations)
	}
}

func TestTroubleDuringTheJitterKeepsTheRegistrationAsItIs(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	r.run(time.Second)
	r.grown = true
	r.run(time.Second)
	r.notify(r.now, &registerapi.RegistrationStatus{PluginRegistered: true}) // late word of the first one
	r.unhealthy()
	r.run(10 * time.Second)
	if st := r.Stats(); st.Registrations != 1 || len(r.deregistrations) != 0 {
		t.Errorf("%d registrations, %d counted, with the gate closed", st.Registrations, len(r.deregistrations))
	}
}

func TestTroubleWithTheDirectoryIsToldAndHeals(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	moved := r.Dir + "-moved"
	if err := os.Rename(r.Dir, moved); err != nil {
		t.Fatal(err)
	}
	r.run(time.Second)
	if r.Err() == nil || r.published {
		t.Error("no error although the directory is gone")
	}
	if err := os.Rename(moved, r.Dir); err != nil {
		t.Fatal(err)
	}
	r.run(time.Second)
	if r.want("the directory is back", true); r.Err() != nil {
		t.Error(r.Err())
	}
}

func TestRunRemovesTheSocketAtItsEnd(t *testing.T) {
	r := newRig(t, nil)
	r.healthy()
	client, path := r.client(), r.path()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		r.Run(ctx)
		close(ended)
	}()
	// The client waits until the socket is there.
	if _, err := client.GetInfo(t.Context(), &registerapi.InfoRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	cancel()
	<-ended
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket is still there")
	}
}
