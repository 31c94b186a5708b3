// Package kubelet stands in for the two parts of kubelet that a CSI node plugin meets: the plugin
// watcher, and the CSI volume plugin with the bookkeeping around it. It works over real sockets and
// real directories and does what kubelet v1.34 does, its habits that hurt included; what it does
// not have is an API server. A Kubelet with a PluginManager of kubelet's own code runs everything
// else here on top of that.
package kubelet

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
)

// Config says where this kubelet lives. Dir is required.
type Config struct {
	// Dir is kubelet's root directory, /var/lib/kubelet on most nodes.
	Dir string
	// NodeName goes into vol_data.json.
	NodeName string
	// Plugins finds and registers plugins; nil is this package's Watcher.
	Plugins PluginManager
	// Log receives what kubelet would log; nil discards it.
	Log *slog.Logger
}

// Kubelet registers CSI drivers while Run runs, and mounts volumes through those that are
// registered. It is safe for concurrent use. A new Kubelet on the Dir of an old one is a kubelet
// that was restarted: it takes up the volumes whose vol_data.json it finds.
type Kubelet struct {
	// Drivers are those registered now.
	Drivers *Drivers

	cfg Config

	mu      sync.Mutex
	volumes map[string]*volumeState
}

// New returns a Kubelet that knows no driver yet.
func New(cfg Config) *Kubelet {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Plugins == nil {
		cfg.Plugins = Watcher{Log: cfg.Log}
	}
	return &Kubelet{Drivers: NewDrivers(), cfg: cfg, volumes: make(map[string]*volumeState)}
}

// RegistryDir is where plugins put their registration sockets.
func (k *Kubelet) RegistryDir() string { return filepath.Join(k.cfg.Dir, "plugins_registry") }

// Run watches RegistryDir until ctx ends.
func (k *Kubelet) Run(ctx context.Context) error {
	return k.cfg.Plugins.Run(ctx, k.RegistryDir(), k.Drivers)
}
