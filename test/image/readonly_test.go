package image_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/image/buildah"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story"
)

// A mount that is read-only is that itself, and not what is mounted below it: a process in the gate's container may write to
// the volumes of others. docs/security.md counts it as root on the node for that.
func TestReadOnlyEndsAtWhatIsMountedBelow(t *testing.T) {
	dir := sharedDir(t)
	at := story.Places{
		Kubelet: filepath.Join(dir, "kubelet"), DriverSocket: filepath.Join(dir, "driver"), Host: filepath.Join(dir, "host"),
	}
	const below = "volume"
	onHost := map[string]string{
		at.Kubelet: at.Kubelet, "/host/sys": filepath.Join(at.Host, "sys"), "/host/dev": filepath.Join(at.Host, "dev"),
	}
	dirs := []string{at.DriverSocket, filepath.Join(at.Kubelet, "plugins", driverName), filepath.Join(at.Kubelet, "plugins_registry")}
	for _, outside := range onHost {
		dirs = append(dirs, filepath.Join(outside, below))
	}
	for _, d := range dirs {
		if err := os.MkdirAll(d, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := buildah.Output(exec.Command("cp", "/bin/busybox", at.DriverSocket)); err != nil {
		t.Fatal(err)
	}
	for inside, outside := range onHost {
		volume := filepath.Join(outside, below)
		// sharedDir unmounts it.
		if err := unix.Mount("tmpfs", volume, "tmpfs", 0, "mode=0700"); err != nil {
			t.Fatal(err)
		}
		if out, err := touch(t, at, filepath.Join(inside, "file")); err == nil || !strings.Contains(out, "Read-only file system") {
			t.Errorf("%s can be written to: %v %s", inside, err, out)
		}
		out, err := touch(t, at, filepath.Join(inside, below, "file"))
		if err != nil {
			t.Errorf("%s, mounted below, is read-only too, and docs/security.md says otherwise: %v %s", below, err, out)
		}
		if _, err := os.Stat(filepath.Join(volume, "file")); err != nil {
			t.Error(err)
		}
	}
}

// touch tries to make a file from within the gate's container of the example.
func touch(t *testing.T, at story.Places, file string) (out string, err error) {
	t.Helper()
	c := example(t, plain, at)
	c.Pod.HostNetwork = false
	c.Container.Command, c.Container.Args = []string{"/csi/busybox", "touch"}, []string{file}
	path, args, err := runc(t, &c)
	if err != nil {
		t.Fatal(err)
	}
	text, err := exec.Command(path, args...).CombinedOutput()
	return string(text), err
}
