package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/image"
)

const containerdSocket = "/run/containerd/containerd.sock"

// pauseImage is what every pod's first container runs.
const pauseImage = "localhost/pause:e2e"

// containerdConfig is in version 2, which containerd 1.6 to 2.2 read. The snapshotter copies, so that
// any file system will do. Nothing may lie outside the run's directory and the node's own mounts.
const containerdConfig = `version = 2
root = "%[1]s/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "` + containerdSocket + `"

[plugins."io.containerd.internal.v1.opt"]
  path = "%[1]s/opt"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + pauseImage + `"
  # Not every machine lets root lower it.
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "%[1]s/cni"
    conf_dir = "%[1]s/cni"
`

// networkConfig satisfies containerd. All pods are on the node's own network.
const networkConfig = `{"cniVersion": "0.3.1", "name": "none", "plugins": [{"type": "loopback"}]}`

func (n *Node) startContainerd(ctx context.Context, images []image.Image) error {
	if err := n.write("cni/none.conflist", networkConfig); err != nil {
		return err
	}
	if err := n.write("containerd.toml", fmt.Sprintf(containerdConfig, n.dir)); err != nil {
		return err
	}
	n.daemon("containerd", "--config="+n.path("containerd.toml"))
	if err := n.daemons["containerd"].Start(); err != nil {
		return err
	}
	ctr := func(args ...string) error {
		return n.run(ctx, "ctr", append([]string{"--address=" + containerdSocket, "--namespace=k8s.io"}, args...)...)
	}
	err := n.Eventually(ctx, "containerd answers", func() error { return ctr("version") })
	if err != nil {
		return err
	}
	archive := n.path("images.tar")
	if err := writeImages(archive, append([]image.Image{n.pause()}, images...)); err != nil {
		return err
	}
	// Whoever makes a container of an image unpacks it.
	if err := ctr("images", "import", "--no-unpack", archive); err != nil {
		return err
	}
	return os.Remove(archive)
}

func (n *Node) pause() image.Image {
	return image.Image{
		Name:       pauseImage,
		Files:      map[string]string{"bin/busybox": n.parts.Path("busybox")},
		Entrypoint: []string{"/bin/busybox", "sleep", "2147483647"},
	}
}

func writeImages(path string, images []image.Image) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := image.Write(f, images...); err != nil {
		return err
	}
	return f.Close()
}

// run runs a part of the node to its end, whose output matters only when it fails.
func (n *Node) run(ctx context.Context, program string, args ...string) error {
	_, err := n.output(ctx, "", program, args...)
	return err
}

// output runs a part inside the node, and returns its standard output.
func (n *Node) output(ctx context.Context, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, n.parts.Path(program), args...)
	cmd.Env = n.env
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := n.namespaces.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		said := strings.TrimSpace(stderr.String())
		return stdout.String(), fmt.Errorf("%s: %w: %s", filepath.Base(program)+" "+strings.Join(args, " "), err, said)
	}
	return stdout.String(), nil
}
