package image_test

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// Whatever needs no node needs no mount, no network and no permission either.
func TestTheImageRunsWithNothing(t *testing.T) {
	for _, c := range []struct {
		entrypoint string
		args       []string
		status     int
		says       string
	}{
		{"/csi-rdma-gate", []string{"--version"}, 0, "csi-rdma-gate " + version + " (commit " + commit + ")\n"},
		{"/csi-node-driver-registrar", []string{"--mode=kubelet-registration-probe", "--kubelet-registration-path=/x"}, 0, ""},
		{"/csi-rdma-gate", []string{"probe", "--host-root=/host"}, 3, `--host-root="/host": no such file or directory; mount it into the container`},
	} {
		container := bare(t, c.args...)
		container.Image.Entrypoint = []string{c.entrypoint}
		path, args, err := runc(t, &container)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(path, args...).CombinedOutput()
		status := 0
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
			status = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		if status != c.status || !strings.Contains(string(out), c.says) {
			t.Errorf("%s %v: status %d, %q", c.entrypoint, c.args, status, out)
		}
	}
}
