package volumemanager_test

import (
	"errors"
	"path/filepath"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
	"k8s.io/mount-utils"
)

// host is what volume plugins see of kubelet, with kubelet's own mounter and its layout of directories.
type host struct {
	// nil; whatever is not implemented below is not asked for when volumes are CSI's.
	volume.VolumeHost
	volume.KubeletVolumeHost

	dir       string
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	mounter   mount.Interface

	mu  sync.Mutex
	err error
}

func newHost(dir string, client kubernetes.Interface) *host {
	return &host{
		dir:       dir,
		client:    client,
		informers: informers.NewSharedInformerFactory(client, 0),
		mounter:   mount.New(""),
	}
}

func (h *host) GetPluginDir(plugin string) string {
	return filepath.Join(h.dir, "plugins", plugin)
}

func (h *host) GetVolumeDevicePluginDir(plugin string) string {
	return filepath.Join(h.dir, "plugins", plugin, "volumeDevices")
}

func (h *host) GetPodsDir() string { return filepath.Join(h.dir, "pods") }

func (h *host) GetPodVolumeDir(pod types.UID, plugin, name string) string {
	return filepath.Join(h.GetPodsDir(), string(pod), "volumes", plugin, name)
}

func (h *host) GetPodVolumeDeviceDir(pod types.UID, plugin string) string {
	return filepath.Join(h.GetPodsDir(), string(pod), "volumeDevices", plugin)
}

func (h *host) GetKubeClient() kubernetes.Interface                 { return h.client }
func (h *host) GetMounter() mount.Interface                         { return h.mounter }
func (h *host) GetHostUtil() hostutil.HostUtils                     { return hostutil.NewHostUtil() }
func (h *host) GetSubpather() subpath.Interface                     { return subpath.New(h.mounter) }
func (h *host) GetNodeName() types.NodeName                         { return nodeName }
func (h *host) GetNodeLabels() (map[string]string, error)           { return nil, nil }
func (h *host) GetInformerFactory() informers.SharedInformerFactory { return h.informers }
func (h *host) CSIDriverLister() storagelisters.CSIDriverLister {
	return h.informers.Storage().V1().CSIDrivers().Lister()
}
func (h *host) GetAttachedVolumesFromNodeStatus() (map[v1.UniqueVolumeName]string, error) {
	return nil, nil
}

func (h *host) GetServiceAccountTokenFunc() func(string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return func(string, string, *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
		return nil, errors.New("no driver of these tests wants a token")
	}
}

func (h *host) WaitForCacheSync() error {
	if !cache.WaitForCacheSync(nil, h.informers.Storage().V1().CSIDrivers().Informer().HasSynced) {
		return errors.New("CSIDriver objects were not read")
	}
	return nil
}

// SetKubeletError keeps kubelet from being ready until the csi plugin has its CSINode.
func (h *host) SetKubeletError(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
}

func (h *host) ready() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err == nil
}
