package volumemanager_test

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	podmanager "k8s.io/kubernetes/pkg/kubelet/pod"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
	"k8s.io/kubernetes/pkg/volume/util/volumepathhandler"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

// patience is for things that kubelet does after a back-off, which doubles from 500 ms.
const patience = 60 * time.Second

// kubelet is the part of kubelet that calls CSI drivers: its volume manager (populator, reconciler,
// operation executor), its csi plugin, its plugin manager and its pod manager. What is ours is the
// place of the pod workers: we start and delete pods as they do.
//
// The csi plugin keeps its state in variables of its package, so only one kubelet runs at a time.
type kubelet struct {
	dir     string
	client  kubernetes.Interface
	host    *host
	plugins *volume.VolumePluginMgr
	pods    *pods
	events  *events

	// volumes is replaced when kubelet is restarted.
	volumes volumemanager.VolumeManager
	kill    func()
}

// startKubelet starts one that ends with the test. The test fails if a mount is left then.
func startKubelet(t *testing.T, client kubernetes.Interface) *kubelet {
	t.Helper()
	keepLog(t)

	dir := storytest.TempDir(t)
	t.Cleanup(func() { removeBelow(t, dir) })
	k := &kubelet{
		dir:     filepath.Join(dir, "kubelet"),
		client:  client,
		plugins: &volume.VolumePluginMgr{},
		pods:    &pods{Manager: podmanager.NewBasicPodManager(), ended: map[types.UID]bool{}},
		events:  &events{},
	}
	for _, d := range []string{"plugins", "plugins_registry", "pods"} {
		if err := os.MkdirAll(filepath.Join(k.dir, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	k.host = newHost(k.dir, client)
	if err := k.plugins.InitPlugins(csi.ProbeVolumePlugins(), nil, k.host); err != nil {
		t.Fatal(err)
	}
	await(t, "kubelet has its CSINode", k.host.ready)
	k.run()
	t.Cleanup(func() { k.kill() })
	if err := k.host.WaitForCacheSync(); err != nil {
		t.Fatal(err)
	}
	return k
}

// keepLog shows kubelet's log when the test has failed.
func keepLog(t *testing.T) {
	t.Helper()
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Parse([]string{"-logtostderr=false", "-stderrthreshold=FATAL", "-one_output"}); err != nil {
		t.Fatal(err)
	}
	log := &child.Tail{Lines: 400}
	klog.SetOutput(log)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kubelet's log:\n%s", strings.Join(log.Last(), "\n"))
		}
	})
}

// run starts what a kubelet process starts.
func (k *kubelet) run() {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	registrations := pluginmanager.NewPluginManager(filepath.Join(k.dir, "plugins_registry"), k.events)
	registrations.AddHandler("CSIPlugin", csi.PluginHandler)
	running.Go(func() { runPluginManager(ctx, registrations) })
	k.volumes = newVolumeManager(k)
	running.Go(func() { k.volumes.Run(ctx, allReady()) })
	k.kill = func() {
		cancel()
		running.Wait()
	}
}

// restart loses what a kubelet process has in memory, the registered drivers too, and starts over on the
// same directories. No operation may be running.
func (k *kubelet) restart(drivers ...string) {
	k.kill()
	for _, d := range drivers {
		deregisterDriver(d, k.endpoint(d))
	}
	k.run()
}

func (k *kubelet) endpoint(driver string) string {
	return filepath.Join(k.dir, "plugins", driver, "csi.sock")
}

// start hands over a pod that was scheduled to the node.
func (k *kubelet) start(pod *v1.Pod) { k.pods.AddPod(pod) }

// sync does what a pod worker does at each of its turns: it asks for the volumes and waits until they are mounted.
func (k *kubelet) sync(t *testing.T, pod *v1.Pod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := k.volumes.WaitForAttachAndMount(ctx, pod); err != nil {
		t.Fatalf("pod %s: %v\n%s", pod.Name, err, k.events.of(pod))
	}
}

// delete ends the pod's containers and does what a pod worker does after that: the pod goes once its volumes are
// unmounted.
func (k *kubelet) delete(t *testing.T, pod *v1.Pod) {
	t.Helper()
	k.pods.end(pod.UID)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := k.volumes.WaitForUnmount(ctx, pod); err != nil {
		t.Fatalf("pod %s hangs: %v", pod.Name, err)
	}
	await(t, "pod "+pod.Name+" has no volume any more", func() bool { return !possiblyMounted(k.volumes, pod) })
	k.pods.RemovePod(pod)
}

// forgets waits until the volume manager knows the volume no more: from then on nobody will unmount it.
func (k *kubelet) forgets(t *testing.T, driver, volume string) {
	t.Helper()
	name := v1.UniqueVolumeName(fmt.Sprintf("%s/%s^%s", csi.CSIPluginName, driver, volume))
	await(t, "kubelet forgets volume "+volume, func() bool { return !k.volumes.VolumeIsAttached(name) })
}

// files are the vol_data.json that name the driver.
func (k *kubelet) files(t *testing.T, driver string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(k.dir, func(path string, e fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // other tests go on
		}
		if err != nil || e.Name() != "vol_data.json" {
			return err
		}
		b, err := os.ReadFile(path)
		if strings.Contains(string(b), `"driverName":"`+driver+`"`) {
			found = append(found, path)
		}
		if os.IsNotExist(err) {
			return nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// allReady says that all sources of pods have been seen.
func allReady() config.SourcesReady {
	return config.NewSourcesReady(func(sets.Set[string]) bool { return true })
}

// pods are kubelet's pod manager, and which pods have ended.
type pods struct {
	podmanager.Manager

	mu    sync.Mutex
	ended map[types.UID]bool
}

func (p *pods) end(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended[uid] = true
}

func (p *pods) ShouldPodContainersBeTerminating(uid types.UID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended[uid]
}

func (p *pods) ShouldPodRuntimeBeRemoved(uid types.UID) bool {
	return p.ShouldPodContainersBeTerminating(uid)
}

// events records what `kubectl describe pod` would show.
type events struct {
	record.EventRecorder // nil; kubelet calls the one method below

	mu    sync.Mutex
	lines []string // POD REASON MESSAGE
}

func (e *events) Eventf(object runtime.Object, _, reason, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pod, _ := object.(*v1.Pod)
	e.lines = append(e.lines, pod.GetName()+" "+reason+" "+fmt.Sprintf(format, args...))
}

// of are the pod's events, one a line.
func (e *events) of(pod *v1.Pod) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var found strings.Builder
	for _, l := range e.lines {
		if strings.HasPrefix(l, pod.Name+" ") {
			found.WriteString(l + "\n")
		}
	}
	return found.String()
}

// await waits for an event of the pod that has all the texts.
func (e *events) await(t *testing.T, pod *v1.Pod, texts ...string) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("events:\n%s", e.of(pod))
		}
	}()
	await(t, fmt.Sprintf("an event of pod %s says %q", pod.Name, texts), func() bool { return e.say(pod, texts...) })
}

// say is true if an event of the pod has all the texts.
func (e *events) say(pod *v1.Pod, texts ...string) bool {
	for line := range strings.Lines(e.of(pod)) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return true
		}
	}
	return false
}

// blockPaths is kubelet's handling of block devices, less the loop device by which it keeps a device open: a
// container has none.
type blockPaths struct {
	volumepathhandler.VolumePathHandler
}

func (blockPaths) AttachFileDevice(string) (string, error) { return "", nil }
func (blockPaths) DetachFileDevice(string) error           { return nil }
func (blockPaths) GetLoopDevice(string) (string, error)    { return "", nil }

// await fails the test when ok does not come true.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %s: %s", patience, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// mountsBelow are the mount points in dir.
func mountsBelow(t *testing.T, dir string) []string {
	t.Helper()
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		t.Fatal(err)
	}
	var points []string
	for _, i := range infos {
		points = append(points, i.Mountpoint)
	}
	return points
}

// removeBelow empties dir, and complains about mounts unless the test has failed already.
func removeBelow(t *testing.T, dir string) {
	t.Helper()
	for _, m := range mountsBelow(t, dir) {
		if !t.Failed() {
			t.Errorf("left behind: mount %s", m)
		}
		_ = unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			t.Error(err)
		}
	}
}
