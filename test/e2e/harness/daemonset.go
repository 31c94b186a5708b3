package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
)

const (
	// DriverName is what the manifest calls the driver.
	DriverName = "nfs.example.com"
	// DaemonSetName is what it calls itself, in the namespace kube-system; its pods have Selector.
	DaemonSetName = "csi-nfs-node"
	Selector      = "app.kubernetes.io/name=" + DaemonSetName
	// PluginDir is the driver's directory on the node, where the gate has its socket.
	PluginDir = node.KubeletDir + "/plugins/" + DriverName
	// RegistrationSocket is where kubelet finds the gate.
	RegistrationSocket = node.KubeletDir + "/plugins_registry/" + DriverName + "-reg.sock"
)

// The images that the node has.
const (
	GateImage    = "localhost/csi-rdma-gate:e2e"
	DriverImage  = "localhost/driver:e2e"
	BusyboxImage = "localhost/busybox:e2e"
)

// gateHTTP is where the gate serves status and metrics, on the node's own network.
const gateHTTP = "127.0.0.1:9809"

// Deployment says how the DaemonSet differs from the example.
type Deployment struct {
	// Gate and Driver are further arguments; of a flag that is given twice the last one counts.
	Gate, Driver []string
	// Change makes any other change.
	Change func(*appsv1.DaemonSet)
}

// quicker are the gate's flags in every scenario: what is waited for half a minute by default takes
// too long to watch.
var quicker = []string{
	"--http-endpoint=" + gateHTTP,
	"--deregister-threshold=5",
	"--deregister-jitter=1s",
	"--register-jitter=1s",
}

// Deploy deploys the driver with the gate in front of it, and waits until its pod is ready and the
// driver is registered.
func (s *Scene) Deploy(ctx context.Context, d Deployment) error {
	if err := s.ApplyDaemonSet(ctx, d); err != nil {
		return err
	}
	if err := s.AwaitDaemonSet(ctx); err != nil {
		return err
	}
	return s.AwaitRegistered(ctx, true)
}

// ApplyDaemonSet is Deploy without the waiting; it also changes what is deployed already.
func (s *Scene) ApplyDaemonSet(ctx context.Context, d Deployment) error {
	text, err := os.ReadFile(s.manifest)
	if err != nil {
		return err
	}
	ds, err := d.patch(text)
	if err != nil {
		return fmt.Errorf("%s: %w", s.manifest, err)
	}
	return s.Apply(ctx, csiDriver(), ds)
}

// AwaitDaemonSet waits until the newest DaemonSet is ready on the node.
func (s *Scene) AwaitDaemonSet(ctx context.Context) error {
	_, err := s.Kubectl(ctx, "--namespace=kube-system",
		"rollout", "status", "daemonset/"+DaemonSetName, "--timeout="+Patience.String())
	return err
}

// csiDriver says that the driver's volumes need no attaching.
func csiDriver() *storagev1.CSIDriver {
	no := false
	return &storagev1.CSIDriver{
		TypeMeta:   metav1.TypeMeta{APIVersion: "storage.k8s.io/v1", Kind: "CSIDriver"},
		ObjectMeta: metav1.ObjectMeta{Name: DriverName},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: &no},
	}
}

// patch changes the example only where this node differs from a user's: images and hardware are its
// own, and the bundled driver needs a place for its volumes.
func (d Deployment) patch(manifest []byte) (*appsv1.DaemonSet, error) {
	ds := &appsv1.DaemonSet{}
	if err := yaml.UnmarshalStrict(manifest, ds); err != nil {
		return nil, err
	}
	pod := &ds.Spec.Template.Spec
	gate, err := containerNamed(pod.InitContainers, "gate")
	if err != nil {
		return nil, err
	}
	driver, err := containerNamed(pod.Containers, "driver")
	if err != nil {
		return nil, err
	}
	gate.Image, driver.Image = GateImage, DriverImage
	gate.Args = slices.Concat(gate.Args, quicker, d.Gate)
	driver.Args = slices.Concat(driver.Args, []string{"--state-dir=" + PluginDir + "/state"}, d.Driver)
	err = errors.Join(
		setHostPath(pod.Volumes, "host-sys", "/sys", hardwareDir+"/sys"),
		setHostPath(pod.Volumes, "host-dev", "/dev", hardwareDir+"/dev"),
	)
	if err != nil {
		return nil, err
	}
	if d.Change != nil {
		d.Change(ds)
	}
	return ds, nil
}

func containerNamed(containers []corev1.Container, name string) (*corev1.Container, error) {
	for i := range containers {
		if containers[i].Name == name {
			return &containers[i], nil
		}
	}
	return nil, fmt.Errorf("there is no container %q", name)
}

// setHostPath makes a volume another directory of the host.
func setHostPath(volumes []corev1.Volume, name, have, want string) error {
	for _, v := range volumes {
		if v.Name != name {
			continue
		}
		if v.HostPath == nil || v.HostPath.Path != have {
			return fmt.Errorf("the volume %q is not the host's %s", name, have)
		}
		v.HostPath.Path = want
		return nil
	}
	return fmt.Errorf("there is no volume %q", name)
}

// DriverPod is the name of the DaemonSet's pod; an error if there is not exactly one.
func (s *Scene) DriverPod(ctx context.Context) (string, error) {
	var pods corev1.PodList
	if err := s.Get(ctx, &pods, "pods", "--namespace=kube-system", "--selector="+Selector); err != nil {
		return "", err
	}
	if len(pods.Items) != 1 {
		return "", fmt.Errorf("the DaemonSet has %d pods", len(pods.Items))
	}
	return pods.Items[0].Name, nil
}

// Log is the log of a container of the DaemonSet's pod, gate or driver, since it was last started.
func (s *Scene) Log(ctx context.Context, container string) (string, error) {
	return s.Kubectl(ctx, "--namespace=kube-system", "logs", "daemonset/"+DaemonSetName, "--container="+container)
}
