package volumemanager_test

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
)

const (
	nodeName  = "worker-7"
	namespace = "default"
)

// newCluster is client-go's fake API server with a node and the CSIDriver objects. Those must be there
// before kubelet's informer starts: the fake loses what comes between its list and its watch.
func newCluster(drivers ...*storagev1.CSIDriver) kubernetes.Interface {
	objects := []runtime.Object{&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: "node"}}}
	for _, d := range drivers {
		objects = append(objects, d)
	}
	return fake.NewClientset(objects...)
}

// csiDriver is the object of a driver without attachment, with every default that the API server fills in.
func csiDriver(name string, republish bool) *storagev1.CSIDriver {
	no, policy := false, storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       &no,
			PodInfoOnMount:       &no,
			StorageCapacity:      &no,
			SELinuxMount:         &no,
			FSGroupPolicy:        &policy,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
			RequiresRepublish:    &republish,
		},
	}
}

// createVolume makes a PersistentVolume of that name, its claim of the same name, and binds them.
func createVolume(t *testing.T, client kubernetes.Interface, driver, name string, mode v1.PersistentVolumeMode) {
	t.Helper()
	size := v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	access := []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			Capacity: size, AccessModes: access, VolumeMode: &mode,
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}},
			ClaimRef:               &v1.ObjectReference{Namespace: namespace, Name: name, UID: types.UID(name)},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}
	if _, err := client.CoreV1().PersistentVolumes().Create(context.Background(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pvc := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(name)},
		Spec:       v1.PersistentVolumeClaimSpec{AccessModes: access, VolumeMode: &mode, VolumeName: name},
		Status:     v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, AccessModes: access, Capacity: size},
	}
	if _, err := client.CoreV1().PersistentVolumeClaims(namespace).Create(context.Background(), pvc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// newPod is a pod with one container that uses the claim.
func newPod(name, claim string, mode v1.PersistentVolumeMode) *v1.Pod {
	c := v1.Container{Name: "c"}
	if mode == v1.PersistentVolumeBlock {
		c.VolumeDevices = []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
	} else {
		c.VolumeMounts = []v1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, UID: types.UID(name)},
		Spec: v1.PodSpec{
			NodeName:   nodeName,
			Containers: []v1.Container{c},
			Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
				PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
}
