package registration

import (
	"fmt"
	"regexp"
	"time"

	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/proxy"
)

// maxRefusalBackoff is where kubelet's own back-off ends (2m02s).
const maxRefusalBackoff = 2 * time.Minute

// collision is the error with which kubelet refuses a topology label that has another value already
// (pkg/volume/csi/nodeinfomanager of k8s.io/kubernetes).
var collision = regexp.MustCompile(`detected topology value collision: driver reported "([^"]*)":"([^"]*)" but existing label is "[^"]*":"([^"]*)"`)

// notify takes kubelet's word on the newest registration.
func (r *Registrar) notify(now time.Time, status *registerapi.RegistrationStatus) {
	if status.GetPluginRegistered() {
		if r.refusals > 0 {
			r.refusals, r.freshAt = 0, time.Time{}
		}
		r.confirmed = true
		r.obstacle("")
		klog.InfoS("Kubelet has registered the driver", "node", r.NodeName, "driver", r.name)
		return
	}
	r.confirmed = false
	r.update(func(st *Stats) { st.Refusals++ })
	why := proxy.OneLine(status.GetError())
	r.obstacle("kubelet did not register the driver: " + why)
	if r.freshAt.IsZero() { // else it says again what is being seen to
		backoff := min(time.Second<<min(r.refusals, 10), maxRefusalBackoff)
		backoff = backoff/2 + r.random(backoff)
		r.refusals++
		r.freshAt = now.Add(backoff)
		klog.InfoS("Kubelet did not register the driver; it gets a fresh socket", "node", r.NodeName, "driver", r.name, "err", why, "in", backoff.Round(time.Millisecond).String())
	}
	if m := collision.FindStringSubmatch(status.GetError()); m != nil && r.Topology.RefuseTopologyKey(m[1]) {
		r.update(func(st *Stats) { st.RefusedKeys = append(st.RefusedKeys, m[1]) })
		klog.InfoS("Topology label is left out, because the node has it with another value", "key", m[1], "reported", m[2], "onNode", m[3],
			"remedy", fmt.Sprintf("kubectl label node %s %s-", r.NodeName, m[1]))
	}
}
