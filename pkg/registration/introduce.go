package registration

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/proxy"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/socket"
)

// maxDriverTimeout is where the deadline of the driver's calls stops doubling.
const maxDriverTimeout = 2 * time.Minute

// introduce waits for the driver to tell its name and all that kubelet will ask. It returns false
// when ctx ends before.
func (r *Registrar) introduce(ctx context.Context) bool {
	said := ""
	for timeout := r.Timeout; ctx.Err() == nil; {
		began := time.Now()
		err := r.meet(ctx, timeout)
		if err == nil {
			klog.InfoS("Driver is ready", "node", r.NodeName, "driver", r.name)
			r.obstacle("")
			return true
		}
		if text := proxy.OneLine(err.Error()); text != said {
			r.obstacle("waiting for the CSI driver: " + text)
			klog.InfoS("Waiting for the CSI driver", "node", r.NodeName, "err", text)
			said = text
		}
		// Only a driver that is slow gets more time. One that fails at once, as while it starts, would
		// otherwise be waited for that long when it is silent once.
		if time.Since(began) >= timeout {
			timeout = min(2*timeout, maxDriverTimeout)
		}
		select {
		case <-time.After(min(timeout, time.Second)):
		case <-ctx.Done():
		}
	}
	return false
}

func (r *Registrar) meet(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	name, err := r.Driver.DriverName(ctx)
	if err != nil {
		return err
	}
	if !driverNames.MatchString(name) {
		return fmt.Errorf("the driver calls itself %q, which the CSI specification does not allow", name)
	}
	r.name = name
	// Kubelet asks a dead socket for ever, and until 1.35 takes the silence for a final error. A
	// driver that it does not know it asks again later.
	r.removeDead()
	return r.Driver.Ready(ctx)
}

func (r *Registrar) removeDead() {
	if path := r.path(); socket.Dead(path) {
		klog.InfoS("Removed a registration socket on which nobody listens", "path", path)
		_ = os.Remove(path)
	}
}

// awaitVerdict gives the first probe its time, so that a node whose hardware is dead from the start
// is not registered only to be deregistered.
func (r *Registrar) awaitVerdict(ctx context.Context) {
	timeout := time.After(r.VerdictTimeout)
	for h := r.Health(); !h.Decided; h = r.Health() {
		select {
		case <-h.Superseded():
		case <-timeout:
			return
		case <-ctx.Done():
			return
		}
	}
}

// prepare makes the service, once the driver's name is known.
func (r *Registrar) prepare() {
	r.server = grpc.NewServer()
	registerapi.RegisterRegistrationServer(r.server, &service{
		info: &registerapi.PluginInfo{
			Type:              registerapi.CSIPlugin,
			Name:              r.name,
			Endpoint:          r.Endpoint,
			SupportedVersions: []string{"1.0.0"},
		},
		notified: r.notified,
	})
	r.keeper = socket.NewKeeper(r.path(), func(l net.Listener) error { return r.server.Serve(l) })
}
