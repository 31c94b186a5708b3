package harness

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// TroubleFile is what the bundled driver takes as its --trouble-file once SetTrouble is to work.
const TroubleFile = PluginDir + "/trouble"

// SetTrouble makes the driver's calls fail as the lines say, until EndTrouble.
func (s *Scene) SetTrouble(lines string) error {
	path := s.Node.Path(TroubleFile)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(lines+"\n"), 0o600)
}

// EndTrouble ends it.
func (s *Scene) EndTrouble() error { return os.Remove(s.Node.Path(TroubleFile)) }

// Container is the status of a container of the DaemonSet's pod, gate or driver.
func (s *Scene) Container(ctx context.Context, name string) (corev1.ContainerStatus, error) {
	pod, err := s.DriverPod(ctx)
	if err != nil {
		return corev1.ContainerStatus{}, err
	}
	var p corev1.Pod
	if err := s.Get(ctx, &p, "pod", pod, "--namespace=kube-system"); err != nil {
		return corev1.ContainerStatus{}, err
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.Name == name {
			return c, nil
		}
	}
	return corev1.ContainerStatus{}, fmt.Errorf("pod %s has no container %q", pod, name)
}

// Kill kills a container of the DaemonSet's pod by SIGKILL. Kubelet starts it again: at once the first
// time, after a back-off that begins with 10 s every further time.
func (s *Scene) Kill(ctx context.Context, container string) error {
	c, err := s.Container(ctx, container)
	if err != nil {
		return err
	}
	return s.kill(ctx, c)
}

func (s *Scene) kill(ctx context.Context, c corev1.ContainerStatus) error {
	return s.Node.KillContainer(ctx, strings.TrimPrefix(c.ContainerID, "containerd://"))
}

// LoseDaemonSet takes the DaemonSet and its pods out of the API server while there is no kubelet that
// could end them.
func (s *Scene) LoseDaemonSet(ctx context.Context) error {
	_, err := s.Kubectl(ctx, "--namespace=kube-system", "delete", "daemonset", DaemonSetName, "--cascade=orphan")
	if err != nil {
		return err
	}
	_, err = s.Kubectl(ctx, "--namespace=kube-system", "delete", "pods", "--selector="+Selector, "--force", "--grace-period=0")
	return err
}
