// Package dirdriver is the fake CSI driver behind the command driver, for tests that want it in
// their own process. A volume is a directory; it exists from CreateVolume on, or from the first
// NodeStageVolume (or, without staging, NodePublishVolume) that names it, as if somebody had
// provisioned it by hand.
package dirdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
)

// stopTimeout is how long Serve waits for running calls once it was told to end.
const stopTimeout = 5 * time.Second

// Config says what the driver is. Name, NodeID and StateDir are required.
type Config struct {
	Name     string
	NodeID   string
	StateDir string
	// Topology is what NodeGetInfo reports; empty means that the driver has no topology.
	Topology map[string]string
	// NoStage drops STAGE_UNSTAGE_VOLUME.
	NoStage bool
	// TroubleFile makes calls fail while it exists, see makeTrouble. Empty for none.
	TroubleFile string
	// Calls receives one line per finished call; nil discards them.
	Calls io.Writer
}

// Driver serves Identity, Controller and Node. It is safe for concurrent use and does one call at
// a time, which spares it every question of order.
type Driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	cfg     Config
	volumes volumes
	binder  binder

	// mu is held for the length of a call that touches volumes.
	mu sync.Mutex
	// logMu keeps lines whole.
	logMu sync.Mutex
}

// New makes the state directory and finds out whether this process may mount.
func New(cfg Config) (*Driver, error) {
	if cfg.Name == "" || cfg.NodeID == "" || cfg.StateDir == "" {
		return nil, errors.New("name, node id and state directory must not be empty")
	}
	if cfg.Calls == nil {
		cfg.Calls = io.Discard
	}
	dir, err := filepath.Abs(cfg.StateDir)
	if err != nil {
		return nil, err
	}
	d := &Driver{cfg: cfg, volumes: volumes{filepath.Join(dir, "volumes")}}
	if err := os.MkdirAll(d.volumes.dir, 0o750); err != nil {
		return nil, err
	}
	d.binder, err = newBinder(dir)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Kind says in two words what a staged volume is: "bind mounts" or "plain directories".
func (d *Driver) Kind() string { return d.binder.kind() }

// Listen listens on the Unix socket at path, "unix:" prefix or not, in place of whatever socket a
// killed predecessor left there.
func Listen(path string) (net.Listener, error) {
	path = strings.TrimPrefix(strings.TrimPrefix(path, "unix://"), "unix:")
	if fi, err := os.Lstat(path); err == nil && fi.Mode().Type() == os.ModeSocket {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("left-over socket: %w", err)
		}
	}
	return net.Listen("unix", path)
}

// Serve answers on l, which it closes, until ctx ends.
func (d *Driver) Serve(ctx context.Context, l net.Listener) error {
	s := grpc.NewServer(grpc.ChainUnaryInterceptor(d.logCall, d.makeTrouble))
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterNodeServer(s, d)

	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	force := time.AfterFunc(stopTimeout, s.Stop)
	defer force.Stop()
	s.GracefulStop()
	return <-served
}
