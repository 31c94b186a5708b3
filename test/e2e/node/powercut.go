package node

import (
	"context"
	"slices"
	"strings"
)

// KillContainer kills a container's processes, as a crash would end them. id is the runtime's, as a
// pod's status has it behind containerd://.
func (n *Node) KillContainer(ctx context.Context, id string) error {
	_, err := n.tasks(ctx, "kill", "--signal=SIGKILL", id)
	return err
}

// CutPower ends what ends when a machine loses power: kubelet, every container, and what is mounted
// below kubelet's directory. Files stay, sockets included. The control plane, which is elsewhere, and
// the container runtime, which a boot starts before kubelet, live on. StartKubelet ends the boot.
func (n *Node) CutPower(ctx context.Context) error {
	n.daemons["kubelet"].Kill()
	list, err := n.tasks(ctx, "list")
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		// Its columns are task, process and status.
		if f := strings.Fields(line); len(f) == 3 && f[2] == "RUNNING" {
			if err := n.KillContainer(ctx, f[0]); err != nil {
				return err
			}
		}
	}
	return n.Eventually(ctx, "nothing is mounted below "+KubeletDir, func() error { return n.unmountVolumes(ctx) })
}

func (n *Node) tasks(ctx context.Context, args ...string) (string, error) {
	return n.output(ctx, "", "ctr", append([]string{"--address=" + containerdSocket, "--namespace=k8s.io", "tasks"}, args...)...)
}

// unmountVolumes unmounts everything below kubelet's directory, the newest mount first.
func (n *Node) unmountVolumes(ctx context.Context) error {
	infos, err := n.Mounts()
	if err != nil {
		return err
	}
	for _, i := range slices.Backward(infos) {
		if !strings.HasPrefix(i.Mountpoint, KubeletDir+"/") {
			continue
		}
		if err := n.run(ctx, "busybox", "umount", i.Mountpoint); err != nil {
			return err
		}
	}
	return nil
}
