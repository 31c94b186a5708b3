package harness

import (
	"context"
	"fmt"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
)

// RegistrarImage has the stand-in for csi-node-driver-registrar.
const RegistrarImage = "localhost/registrar:e2e"

// registrarPod is the name of its pod.
const registrarPod = "registrar"

// registrarManifest is a registrar as it stood beside the driver before the gate took its place. It
// is a pod of its own only so that it can come and go, and it is not started again.
const registrarManifest = `apiVersion: v1
kind: Pod
metadata: {name: ` + registrarPod + `, labels: {` + label + `: "%s"}}
spec:
  hostNetwork: true
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  restartPolicy: Never
  containers:
    - name: registrar
      image: ` + RegistrarImage + `
      args:
        - --csi-address=/csi/csi.sock
        - --kubelet-registration-path=` + PluginDir + `/csi.sock
      volumeMounts:
        - {name: socket, mountPath: /csi}
        - {name: registration, mountPath: /registration}
  volumes:
    - name: socket
      hostPath: {path: ` + PluginDir + `, type: Directory}
    - name: registration
      hostPath: {path: ` + node.KubeletDir + `/plugins_registry, type: Directory}
`

// StartRegistrar starts a registrar that somebody has forgotten.
func (s *Scene) StartRegistrar(ctx context.Context) error {
	return s.Apply(ctx, fmt.Sprintf(registrarManifest, s.name))
}

// RegistrarLog is what kubelet has told the registrar.
func (s *Scene) RegistrarLog(ctx context.Context) (string, error) {
	return s.Kubectl(ctx, "logs", registrarPod)
}

// KillRegistrar kills it, so that its socket stays behind.
func (s *Scene) KillRegistrar(ctx context.Context) error {
	pod, err := s.Pod(ctx, registrarPod)
	if err != nil {
		return err
	}
	return s.kill(ctx, pod.Status.ContainerStatuses[0])
}
