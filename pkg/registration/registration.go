// Package registration answers one question: should kubelet know this driver now? It serves kubelet's
// plugin registration, as csi-node-driver-registrar does, and takes the driver off the node while
// trouble lasts and nothing is mounted.
package registration

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/socket"
)

// Driver is the CSI driver as far as its registration goes.
type Driver interface {
	// DriverName asks for the name.
	DriverName(context.Context) (string, error)
	// Ready returns nil once everything that kubelet asks at registration can be answered.
	Ready(context.Context) error
}

// Volumes are the driver's volumes on this node.
type Volumes interface {
	// Volumes counts them. An error means that there may be more.
	Volumes() (int, error)
	// Undone receives when there may be fewer.
	Undone() <-chan struct{}
}

// Topology is what NodeGetInfo reports beyond the driver's own.
type Topology interface {
	FreezeTopology() map[string]string
	ThawTopology()
	// TopologyHasGrown: there is more to report than what was frozen, and all of that still holds.
	TopologyHasGrown() bool
	// RefuseTopologyKey returns false for a key that is the driver's.
	RefuseTopologyKey(key string) bool
}

// Config is all that a Registrar needs.
type Config struct {
	// Dir is kubelet's plugins_registry, as seen here.
	Dir string
	// Endpoint is the CSI socket, as kubelet sees it.
	Endpoint string
	NodeName string
	// Timeout is the first deadline of the driver's calls at the start; each time it passes it doubles, up to
	// 2 min.
	Timeout time.Duration
	// VerdictTimeout is how long the start waits for the first verdict.
	VerdictTimeout time.Duration

	Observe bool
	Policy  Policy
	// Threshold is the number of unhealthy ticks in a row after which trouble is sustained.
	Threshold int
	// Deregistering and registering again wait a random part of these: a fault of the fabric
	// hits every node in the same second.
	DeregisterJitter, RegisterJitter time.Duration

	Health   func() *probe.Health
	Driver   Driver
	Volumes  Volumes
	Topology Topology
}

const (
	// volumesInterval and undoneDelay: kubelet removes its file only after our reply.
	volumesInterval = 10 * time.Second
	undoneDelay     = time.Second
	// maxPerHour deregistrations: each one costs the API server four writes, and every change of
	// a Node goes to all watchers.
	maxPerHour = 4
)

// Registrar keeps the registration as it should be. Run does the work on one goroutine; Err and Stats are
// safe for concurrent use.
type Registrar struct {
	Config
	random func(time.Duration) time.Duration

	name     string
	server   *grpc.Server
	notified chan *registerapi.RegistrationStatus
	keeper   *socket.Keeper

	published       bool
	confirmed       bool      // kubelet has registered the driver by the socket in place
	unheardAt       time.Time // when it is said that kubelet has not; zero if that has been said
	everPublished   bool
	decided         bool // a snapshot with a verdict has been seen
	sustained       bool
	due             time.Time // when the pending change happens; zero if none is pending
	capped          bool
	deregistrations []time.Time

	volumes   int
	lookAt    time.Time // when the volumes are counted again
	complaint string    // logged last about counting them

	ownerAt, ownerWarnedAt time.Time
	refusals               int
	freshAt                time.Time // when a fresh socket is put in place; zero if none is due
	growAt                 time.Time // when one is because of more topology

	mu    sync.Mutex
	err   error
	stats Stats
}

// New returns a Registrar that has done nothing yet.
func New(config Config) *Registrar {
	return &Registrar{Config: config, random: upTo, notified: make(chan *registerapi.RegistrationStatus, 16), stats: Stats{Wanted: true}}
}

func upTo(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// Run keeps the registration as it should be until ctx ends, then removes the socket. Trouble with
// the driver, kubelet or the directory never ends it.
func (r *Registrar) Run(ctx context.Context) {
	if !r.introduce(ctx) {
		return
	}
	r.prepare()
	defer func() { go r.server.Stop() }() // it waits for clients that have connected and say nothing
	defer func() {
		r.keeper.Remove()
		r.update(func(st *Stats) { st.Registered, st.Confirmed, st.Wanted = false, false, false })
	}()

	r.awaitVerdict(ctx)
	for ctx.Err() == nil {
		h := r.Health()
		r.step(ctx, time.Now(), h)
		select {
		case <-h.Superseded():
		case <-time.After(r.rest(time.Now())):
		case <-r.Volumes.Undone():
			r.undone(time.Now())
		case status := <-r.notified:
			r.notify(time.Now(), status)
		case <-ctx.Done():
		}
	}
}

// undone has the volumes counted again once kubelet has removed its file.
func (r *Registrar) undone(now time.Time) {
	if at := now.Add(undoneDelay); at.Before(r.lookAt) {
		r.lookAt = at
	}
}

// rest is the time until the next step has something to do, a second at most: that is how often the
// socket is looked at.
func (r *Registrar) rest(now time.Time) time.Duration {
	rest := time.Second
	for _, at := range []time.Time{r.due, r.lookAt, r.freshAt, r.growAt} {
		if left := at.Sub(now); left > 0 {
			rest = min(rest, left)
		}
	}
	return rest
}

func (r *Registrar) path() string { return filepath.Join(r.Dir, r.name+"-reg.sock") }

// step brings the registration closer to what it should be at this moment.
func (r *Registrar) step(ctx context.Context, now time.Time, h *probe.Health) {
	want := true
	defer func() {
		r.update(func(st *Stats) {
			st.Registered = r.published && r.keeper.State() == socket.Ours
			st.Confirmed = st.Registered && r.confirmed
			st.Wanted, st.Sustained, st.Volumes = want, r.sustained, r.volumes
		})
	}()
	r.tend()
	r.listen(now)
	was := r.sustained
	r.judge(h)
	r.look(now)

	r.outgrow(now, h)
	want = situation{observe: r.Observe, policy: r.Policy, sustained: r.sustained, volumes: r.volumes}.registered()
	if r.sustained && !was {
		klog.InfoS("Trouble counts for the registration", "node", r.NodeName, "driver", r.name, "staysRegistered", want,
			"policy", string(r.Policy), "observe", r.Observe, "stagedOrPublished", r.volumes, "why", h.Why())
	}
	if want == r.published {
		r.due = time.Time{}
		if want && !r.freshAt.IsZero() && !now.Before(r.freshAt) {
			r.freshAt = time.Time{}
			r.withdraw()
			r.publish(ctx, now)
		}
		if !want {
			r.obstacle("")
			r.clearPlace(now)
		}
		return
	}
	if r.due.IsZero() {
		r.due = now.Add(r.delay(want))
		if in := r.due.Sub(now); in > 0 {
			klog.InfoS("Registration is going to change", "node", r.NodeName, "driver", r.name, "registered", want,
				"in", in.Round(time.Millisecond).String())
		}
	}
	if want && r.volumes > 0 {
		r.due = now // kubelet cannot unmount them without us
	}
	switch {
	case now.Before(r.due):
	case want:
		r.publish(ctx, now)
	case r.mayDeregister(now):
		r.lookAt = now // the newest count decides
		if r.look(now); r.Policy == Drained && r.volumes > 0 {
			return
		}
		r.deregistrations = append(r.deregistrations, now)
		r.withdraw()
		r.update(func(st *Stats) { st.Deregistrations++ })
		klog.InfoS("Deregistered", "node", r.NodeName, "driver", r.name, "policy", string(r.Policy),
			"gateClosedSince", h.Since.UTC().Format(time.RFC3339), "why", h.Why())
	}
}

// outgrow has the driver registered afresh when a driver that loads late, or a card that came back,
// gives NodeGetInfo more to report than there was at the registration: kubelet reads it only then.
// It costs as much as a deregistration and counts as one.
func (r *Registrar) outgrow(now time.Time, h *probe.Health) {
	grown := r.published && h.Open && r.freshAt.IsZero() && r.Topology.TopologyHasGrown()
	switch {
	case !grown:
		r.growAt = time.Time{}
	case r.growAt.IsZero():
		r.growAt = now.Add(r.random(r.RegisterJitter))
		klog.InfoS("The hardware gives more topology than was registered", "driver", r.name, "registeredAfreshIn", r.growAt.Sub(now).Round(time.Millisecond).String())
	case !now.Before(r.growAt) && r.mayDeregister(now):
		r.deregistrations = append(r.deregistrations, now)
		r.growAt, r.freshAt = time.Time{}, now
	}
}

// judge takes in a snapshot: is trouble sustained?
func (r *Registrar) judge(h *probe.Health) {
	r.sustained = sustain(r.sustained, !r.decided, h, r.Threshold)
	r.decided = r.decided || h.Decided
}

// delay spreads the nodes' changes. The first registration and volumes wait for nothing.
func (r *Registrar) delay(want bool) time.Duration {
	switch {
	case !want:
		return r.random(r.DeregisterJitter)
	case !r.everPublished || r.volumes > 0:
		return 0
	default:
		return r.random(r.RegisterJitter)
	}
}

// mayDeregister keeps within maxPerHour.
func (r *Registrar) mayDeregister(now time.Time) bool {
	for len(r.deregistrations) > 0 && now.Sub(r.deregistrations[0]) >= time.Hour {
		r.deregistrations = r.deregistrations[1:]
	}
	may := len(r.deregistrations) < maxPerHour
	if !may && !r.capped {
		klog.InfoS("Not deregistered: it would be too often", "node", r.NodeName, "driver", r.name, "perHour", maxPerHour)
	}
	r.capped = !may
	return may
}

// look counts the volumes while they matter.
func (r *Registrar) look(now time.Time) {
	if !r.sustained || r.Policy != Drained {
		r.volumes, r.lookAt = 0, now
		return
	}
	if now.Before(r.lookAt) {
		return
	}
	r.lookAt = now.Add(volumesInterval)
	n, err := r.Volumes.Volumes()
	complaint := ""
	if err != nil {
		complaint, n = err.Error(), max(n, 1)
	}
	if complaint != r.complaint && err != nil {
		klog.ErrorS(err, "Volumes on this node cannot be counted, so the driver stays registered", "node", r.NodeName, "driver", r.name)
	}
	r.volumes, r.complaint = n, complaint
}
