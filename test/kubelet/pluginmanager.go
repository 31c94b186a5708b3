// Package kubelet puts kubelet's own plugin watcher, reconciler and operation executor, of Kubernetes
// v1.34.3, where package story would use its stand-in. It is a module of its own because of what it
// depends on.
package kubelet

import (
	"context"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"k8s.io/client-go/tools/record"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/operationexecutor"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/pluginwatcher"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/reconciler"
)

// loopSleepDuration is kubelet's.
const loopSleepDuration = time.Second

// PluginManager is kubelet's plugin manager. It is wired here as NewPluginManager of
// pkg/kubelet/pluginmanager wires it; that package itself would bring in much of the rest of kubelet.
type PluginManager struct{}

// Run implements the stand-in's interface of the same name.
func (PluginManager) Run(ctx context.Context, dir string, h kubelet.PluginHandler) error {
	desired, actual := cache.NewDesiredStateOfWorld(), cache.NewActualStateOfWorld()
	executor := operationexecutor.NewOperationExecutor(operationexecutor.NewOperationGenerator(&record.FakeRecorder{}))
	r := reconciler.NewReconciler(executor, loopSleepDuration, desired, actual)
	r.AddHandler(kubelet.CSIPlugin, h)
	if err := pluginwatcher.NewWatcher(dir, desired).Start(ctx.Done()); err != nil {
		return err
	}
	r.Run(ctx.Done())
	return nil
}
