package kubelet

import (
	"context"
	"time"
)

// CSIPlugin is the type that a CSI driver gives in its answer to GetInfo.
const CSIPlugin = "CSIPlugin"

// PluginHandler learns of plugins of type CSIPlugin. It has the methods of PluginHandler in
// kubelet's pkg/kubelet/pluginmanager/cache, so that one serves as the other.
type PluginHandler interface {
	ValidatePlugin(name, endpoint string, versions []string) error
	RegisterPlugin(name, endpoint string, versions []string, timeout *time.Duration) error
	DeRegisterPlugin(name, endpoint string)
}

// PluginManager watches dir for registration sockets and tells h of the plugins behind them, until
// ctx ends.
type PluginManager interface {
	Run(ctx context.Context, dir string, h PluginHandler) error
}
