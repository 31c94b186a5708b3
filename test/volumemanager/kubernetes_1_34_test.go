//go:build !kubernetes_1_37

package volumemanager_test

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	"k8s.io/kubernetes/pkg/volume/csi"
	"k8s.io/kubernetes/pkg/volume/util"
)

// What is called otherwise in v1.34 than in v1.37.

func newVolumeManager(k *kubelet) volumemanager.VolumeManager {
	return volumemanager.NewVolumeManager(true, nodeName, k.pods, k.pods, k.client, k.plugins, k.host.mounter, k.host.GetHostUtil(),
		k.host.GetPodsDir(), k.events, blockPaths{})
}

func possiblyMounted(vm volumemanager.VolumeManager, pod *v1.Pod) bool {
	return len(vm.GetPossiblyMountedVolumesForPod(util.GetUniquePodName(pod))) > 0
}

func runPluginManager(ctx context.Context, pm pluginmanager.PluginManager) {
	pm.Run(allReady(), ctx.Done())
}

// registerDriver does what the plugin manager does for a registration socket.
func registerDriver(name, endpoint string) error {
	return csi.PluginHandler.RegisterPlugin(name, endpoint, []string{"1.0.0"}, nil)
}

func deregisterDriver(name, endpoint string) {
	csi.PluginHandler.DeRegisterPlugin(name, endpoint)
}
