package kubelet

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// csiTimeout is kubelet's deadline for all calls of one operation together.
const csiTimeout = 2 * time.Minute

// Driver is a CSI driver that is registered.
type Driver struct {
	Name string
	// Endpoint is the socket that kubelet calls.
	Endpoint string
	NodeID   string
	// Topology became labels of the node.
	Topology map[string]string
}

// Drivers are the registered CSI drivers and the node's topology labels. It is the PluginHandler
// for CSI, as RegistrationHandler in kubelet's pkg/volume/csi is, and safe for concurrent use.
type Drivers struct {
	mu      sync.Mutex
	drivers map[string]Driver
	// labels only grow: kubelet never takes a label away.
	labels map[string]string
	// changed is closed, and replaced, at every change.
	changed chan struct{}
}

// NewDrivers returns an empty Drivers.
func NewDrivers() *Drivers {
	return &Drivers{
		drivers: make(map[string]Driver),
		labels:  make(map[string]string),
		changed: make(chan struct{}),
	}
}

// Get returns the driver if it is registered.
func (d *Drivers) Get(name string) (Driver, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	drv, ok := d.drivers[name]
	return drv, ok && drv.NodeID != ""
}

// Labels are the node's topology labels.
func (d *Drivers) Labels() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.labels)
}

// Wait returns once the driver is registered, or once it is not.
func (d *Drivers) Wait(ctx context.Context, name string, registered bool) (Driver, error) {
	for {
		d.mu.Lock()
		changed := d.changed
		d.mu.Unlock()
		if drv, ok := d.Get(name); ok == registered {
			return drv, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Driver{}, fmt.Errorf("waiting for driver %s to be registered=%t: %w", name, registered, context.Cause(ctx))
		}
	}
}

// ValidatePlugin refuses versions other than 1.x, and a driver whose name is taken.
func (d *Drivers) ValidatePlugin(name, endpoint string, versions []string) error {
	if err := d.validate("ValidatePlugin", name, versions); err != nil {
		return fmt.Errorf("validation failed for CSI Driver %s at endpoint %s: %w", name, endpoint, err)
	}
	return nil
}

// RegisterPlugin asks the driver for its node's id and topology and puts the topology on the node.
func (d *Drivers) RegisterPlugin(name, endpoint string, versions []string, timeout *time.Duration) error {
	if err := d.validate("RegisterPlugin", name, versions); err != nil {
		return err
	}
	// Volumes of the driver find it from here on, but Get does not before it has told its node.
	drv := Driver{Name: name, Endpoint: endpoint}
	d.set(drv)

	t := csiTimeout
	if timeout != nil {
		t = *timeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), t)
	defer cancel()
	var info *csi.NodeGetInfoResponse
	err := drv.call(ctx, func(ctx context.Context, c csi.NodeClient) (err error) {
		info, err = c.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		return err
	})
	if err == nil {
		err = d.install(drv, info)
	}
	if err != nil {
		d.DeRegisterPlugin(name, endpoint)
	}
	return err
}

// DeRegisterPlugin forgets the driver.
func (d *Drivers) DeRegisterPlugin(name, _ string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.drivers, name)
	d.signal()
}

// validate has only ever one version to compare, since 1.x is all there is.
func (d *Drivers) validate(caller, name string, versions []string) error {
	supported := ""
	for _, v := range versions {
		if strings.HasPrefix(strings.TrimPrefix(v, "v"), "1.") {
			supported = v
		}
	}
	if supported == "" {
		return fmt.Errorf("kubernetes.io/csi: %s for CSI driver %q failed. None of the versions specified %q are supported", caller, name, versions)
	}
	if _, taken := d.lookup(name); taken {
		return fmt.Errorf("kubernetes.io/csi: %s for CSI driver %q failed. Another driver with the same name is already registered with a higher supported version: %q", caller, name, supported)
	}
	return nil
}

// install does what kubelet's node info manager does with the Node object.
func (d *Drivers) install(drv Driver, info *csi.NodeGetInfoResponse) error {
	drv.NodeID = info.GetNodeId()
	drv.Topology = info.GetAccessibleTopology().GetSegments()
	if drv.NodeID == "" {
		return fmt.Errorf("error adding CSI driver node info: driverNodeID must not be empty")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, v := range drv.Topology {
		if have, ok := d.labels[k]; ok && have != v {
			return fmt.Errorf("error updating Node object with CSI driver node info: error updating node: detected topology value collision: driver reported %q:%q but existing label is %q:%q", k, v, k, have)
		}
	}
	maps.Copy(d.labels, drv.Topology)
	d.drivers[drv.Name] = drv
	d.signal()
	return nil
}

// lookup is what volumes find.
func (d *Drivers) lookup(name string) (Driver, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	drv, ok := d.drivers[name]
	return drv, ok
}

func (d *Drivers) set(drv Driver) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.drivers[drv.Name] = drv
	d.signal()
}

// signal wakes every Wait. The caller holds mu.
func (d *Drivers) signal() {
	close(d.changed)
	d.changed = make(chan struct{})
}
