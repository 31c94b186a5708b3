package registration

import (
	"slices"

	"k8s.io/klog/v2"
)

// Stats is what a Registrar has counted since its start, and how things stand now.
type Stats struct {
	// Registered: our registration socket is in place.
	Registered bool
	// Confirmed: kubelet has said that it registered the driver by this socket.
	Confirmed bool
	// Wanted: kubelet should know the driver. Registered follows, with jitter and what stands in its way.
	Wanted bool
	// Obstacle is what keeps the driver from being registered although it is wanted; empty when nothing does.
	Obstacle string
	// Sustained: trouble counts for the registration.
	Sustained bool
	// Volumes is the newest count; 0 while it does not matter.
	Volumes int
	// Registrations and Deregistrations are sockets put in place and taken away.
	Registrations, Deregistrations uint64
	// Refusals are registrations that kubelet has reported as failed.
	Refusals uint64
	// RefusedKeys are topology keys left out because the node has them with another value.
	RefusedKeys []string
}

// Stats returns a copy of the counts.
func (r *Registrar) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.stats
	st.RefusedKeys = slices.Clone(st.RefusedKeys)
	if r.err != nil {
		st.Obstacle = r.err.Error()
	}
	return st
}

func (r *Registrar) update(change func(*Stats)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.stats)
}

// obstacle notes what keeps the driver from being registered; "" for nothing.
func (r *Registrar) obstacle(what string) {
	r.update(func(st *Stats) { st.Obstacle = what })
}

// Err says why the registration is not as it should be; nil while it is, deregistered included.
func (r *Registrar) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *Registrar) setErr(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil && (r.err == nil || r.err.Error() != err.Error()) {
		klog.ErrorS(err, "Registration socket cannot be put in place")
	}
	r.err = err
}
