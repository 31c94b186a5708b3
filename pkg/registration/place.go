package registration

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/socket"
)

// How often a live owner of our name is asked whether it is still there, and told of in the log.
const (
	ownerInterval = 10 * time.Second
	ownerWarning  = time.Minute
)

// unheardWarning is how long kubelet may take to register the driver before that deserves a word. It takes
// seconds, unless the driver's NodeGetInfo is slow.
const unheardWarning = 30 * time.Second

// publish puts the registration socket in place, unless another process has the name.
func (r *Registrar) publish(ctx context.Context, now time.Time) {
	if r.owned(ctx, now) {
		return
	}
	segments := r.Topology.FreezeTopology()
	err := r.keeper.Put()
	r.setErr(err)
	if err != nil {
		r.Topology.ThawTopology()
		return
	}
	if r.refusals == 0 { // else what kubelet said holds until it says otherwise
		r.obstacle("")
	}
	r.published, r.everPublished = true, true
	r.confirmed, r.unheardAt = false, now.Add(unheardWarning)
	r.due, r.freshAt = time.Time{}, time.Time{}
	r.update(func(st *Stats) { st.Registrations++ })
	klog.InfoS("Registration socket is in place", "node", r.NodeName, "driver", r.name, "path", r.path(), "endpoint", r.Endpoint, "addedTopology", segments)
}

func (r *Registrar) withdraw() {
	r.keeper.Remove()
	r.Topology.ThawTopology()
	r.published, r.due = false, time.Time{}
	r.setErr(nil)
}

// owned says whether a live process serves the registration socket under our name. Then it is left
// alone: during an update that is the gate before us, and it goes by itself.
func (r *Registrar) owned(ctx context.Context, now time.Time) bool {
	if r.keeper.State() == socket.Missing {
		return false
	}
	if now.Before(r.ownerAt) {
		return true
	}
	r.removeDead()
	if !answers(ctx, r.path(), r.name) {
		return false
	}
	r.ownerAt = now.Add(ownerInterval)
	r.obstacle("another process serves " + r.path())
	if !now.Before(r.ownerWarnedAt.Add(ownerWarning)) {
		r.ownerWarnedAt = now
		klog.InfoS("Another process serves the registration socket; waiting for it to go", "node", r.NodeName, "driver", r.name, "path", r.path())
	}
	return true
}

// clearPlace removes the socket of a process that served our name and has died. As long as it is there, kubelet
// has the driver registered.
func (r *Registrar) clearPlace(now time.Time) {
	if now.Before(r.ownerAt) {
		return
	}
	r.ownerAt = now.Add(ownerInterval)
	r.removeDead()
}

// listen says once if kubelet takes no notice of the socket that is in place.
func (r *Registrar) listen(now time.Time) {
	if !r.published || r.confirmed || r.refusals > 0 || r.unheardAt.IsZero() || now.Before(r.unheardAt) {
		return
	}
	r.unheardAt = time.Time{}
	r.obstacle("kubelet takes no notice of " + r.path() + "; is that directory its own plugins_registry?")
	klog.InfoS("Kubelet takes no notice of the registration socket; is its directory kubelet's own plugins_registry?",
		"node", r.NodeName, "driver", r.name, "path", r.path())
}

// tend looks after the socket that is in place.
func (r *Registrar) tend() {
	if !r.published {
		return
	}
	found, restored, err := r.keeper.Tend()
	r.setErr(err)
	switch {
	case err != nil:
	case restored:
		r.confirmed = false
		r.update(func(st *Stats) { st.Registrations++ })
		klog.InfoS("Registration socket had been removed and is back", "path", r.path())
	case found == socket.Replaced:
		klog.InfoS("Registration socket was replaced by another process", "path", r.path())
		r.withdraw()
	}
}
