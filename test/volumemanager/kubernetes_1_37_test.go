//go:build kubernetes_1_37

package volumemanager_test

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	"k8s.io/kubernetes/pkg/volume/csi"
	"k8s.io/kubernetes/pkg/volume/util"
)

// What is called otherwise in v1.37 than in v1.34:
//
//	go test -modfile=kubernetes-1.37.mod -tags=kubernetes_1_37 ./...

// The volume health that v1.37 can report is off by default, and so nobody takes it here.
func newVolumeManager(k *kubelet) volumemanager.VolumeManager {
	return volumemanager.NewVolumeManager(true, nodeName, k.pods, k.pods, k.client, k.plugins, k.host.mounter, k.host.GetHostUtil(),
		k.host.GetPodsDir(), k.events, blockPaths{}, nil, time.Minute)
}

func possiblyMounted(vm volumemanager.VolumeManager, pod *v1.Pod) bool {
	return vm.HasPossiblyMountedVolumesForPod(util.GetUniquePodName(pod))
}

func runPluginManager(ctx context.Context, pm pluginmanager.PluginManager) {
	pm.Run(ctx, allReady(), ctx.Done())
}

// registerDriver does what the plugin manager does for a registration socket.
func registerDriver(name, endpoint string) error {
	return csi.PluginHandler.RegisterPlugin(context.Background(), name, endpoint, []string{"1.0.0"}, nil)
}

func deregisterDriver(name, endpoint string) {
	csi.PluginHandler.DeRegisterPlugin(context.Background(), name, endpoint)
}
