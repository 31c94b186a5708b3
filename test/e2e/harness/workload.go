package harness

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Patience is how long anything may take that Kubernetes does without a back-off, on a busy machine.
const Patience = 3 * time.Minute

// BackOff is how long something may take that kubelet retries: its longest interval is 2 min 2 s, and
// the attempt before may just have failed.
const BackOff = 5 * time.Minute

// label marks what clear deletes.
const label = "e2e-scenario"

// volumeManifest is a volume as somebody who provisions by hand makes it, and the claim to it.
const volumeManifest = `apiVersion: v1
kind: PersistentVolume
metadata: {name: "%[1]s", labels: {` + label + `: "%[2]s"}}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  persistentVolumeReclaimPolicy: Retain
  storageClassName: ""
  claimRef: {namespace: default, name: "%[1]s"}
  csi: {driver: ` + DriverName + `, volumeHandle: "%[1]s"}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: "%[1]s", labels: {` + label + `: "%[2]s"}}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: ""
  volumeName: "%[1]s"
  resources: {requests: {storage: 1Gi}}
`

// podManifest is a pod that writes its name into its volume and then sleeps. With no grace period at
// all the API object would go although the volume is still mounted.
const podManifest = `apiVersion: v1
kind: Pod
metadata: {name: "%[1]s", labels: {` + label + `: "%[3]s"}}
spec:
  hostNetwork: true
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  containers:
    - name: app
      image: ` + BusyboxImage + `
      command: [busybox, sh, -c, "echo %[1]s >/data/owner && exec busybox sleep 2147483647"]
      volumeMounts: [{name: data, mountPath: /data}]
  volumes:
    - name: data
      persistentVolumeClaim: {claimName: "%[2]s"}
`

// CreateVolume makes a PersistentVolume and a claim of the same name, which is also its handle.
func (s *Scene) CreateVolume(ctx context.Context, name string) error {
	return s.Apply(ctx, fmt.Sprintf(volumeManifest, name, s.name))
}

// CreatePod makes a pod that mounts a volume at /data and writes its own name to /data/owner.
func (s *Scene) CreatePod(ctx context.Context, name, volume string) error {
	return s.Apply(ctx, fmt.Sprintf(podManifest, name, volume, s.name))
}

// CreatePodWithVolume makes a pod and a volume of the same name.
func (s *Scene) CreatePodWithVolume(ctx context.Context, name string) error {
	if err := s.CreateVolume(ctx, name); err != nil {
		return err
	}
	return s.CreatePod(ctx, name, name)
}

// Pod is the pod as the API server has it.
func (s *Scene) Pod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	return pod, s.Get(ctx, pod, "pod", name)
}

// AwaitRunning waits until the pod's container runs, as long as kubelet may need to retry a mount.
func (s *Scene) AwaitRunning(ctx context.Context, pod string) error {
	return Eventually(ctx, BackOff, "pod "+pod+" runs", func() error {
		p, err := s.Pod(ctx, pod)
		if err == nil && (p.Status.Phase != corev1.PodRunning || !p.Status.ContainerStatuses[0].Ready) {
			err = fmt.Errorf("it is %s", p.Status.Phase)
		}
		return err
	})
}

// DeletePod deletes a pod and does not wait for its end.
func (s *Scene) DeletePod(ctx context.Context, pod string) error {
	_, err := s.Kubectl(ctx, "delete", "pod", pod, "--wait=false")
	return err
}

// AwaitGone waits until the API server has the object no more, as long as kubelet may need to retry an
// unmount.
func (s *Scene) AwaitGone(ctx context.Context, kind, name string) error {
	return Eventually(ctx, BackOff, kind+" "+name+" is gone", func() error {
		out, err := s.Kubectl(ctx, "get", kind, name, "--ignore-not-found", "--output=name")
		if err == nil && out != "" {
			err = fmt.Errorf("it is still there")
		}
		return err
	})
}

// Owner reads, in the pod, what stands in its volume.
func (s *Scene) Owner(ctx context.Context, pod string) (string, error) {
	out, err := s.Kubectl(ctx, "exec", pod, "--", "/bin/busybox", "cat", "/data/owner")
	return strings.TrimSpace(out), err
}

// Mounted are the mount points of a volume on the node, staged or published.
func (s *Scene) Mounted(volume string) ([]string, error) {
	infos, err := s.Node.Mounts()
	if err != nil {
		return nil, err
	}
	var points []string
	for _, i := range infos {
		// A volume of the bundled driver is such a directory.
		if strings.HasSuffix(i.Root, "/volumes/"+volume+"/data") {
			points = append(points, i.Mountpoint)
		}
	}
	return points, nil
}
