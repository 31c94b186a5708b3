package probe

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// onDisk writes the plain files of an archive below a directory, with the class entries as links
// into sys/devices, as sysfs has them.
func onDisk(t testing.TB, archive string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range newTree(t, archive).files {
		if strings.HasPrefix(content, "!") {
			continue
		}
		name = strings.Replace(name, classDir+"/", "sys/devices/pci0000:17/0000:17:00.0/infiniband/", 1)
		file := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	pci := filepath.Join(root, "sys/devices/pci0000:17/0000:17:00.0")
	devices, err := os.ReadDir(filepath.Join(pci, "infiniband"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, classDir), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, d := range devices {
		err := errors.Join(
			os.Symlink("../../devices/pci0000:17/0000:17:00.0/infiniband/"+d.Name(), filepath.Join(root, classDir, d.Name())),
			os.Symlink("../../../0000:17:00.0", filepath.Join(pci, "infiniband", d.Name(), "device")))
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestProbeBelowARoot(t *testing.T) {
	c := Config{Root: onDisk(t, roce), Selectors: selectors(t, "pci:0000:17:00.0"), Checks: Checks{Port: true, GID: true, Netdev: true}}
	want(t, New(c).Probe(t.Context(), true), "healthy, mlx5_0/1 healthy, mlx5_1/1 healthy")
	c.Checks.Verbs = true
	want(t, New(c).Probe(t.Context(), true), "unhealthy VerbsMissing, mlx5_0/1 unhealthy VerbsMissing, mlx5_1/1 unhealthy VerbsMissing")
}

func TestProbeOfAnEmptyRootSaysWhereItLooked(t *testing.T) {
	root := t.TempDir()
	r := New(Config{Root: root}).Probe(t.Context(), true)
	want(t, r, "unhealthy NoSubsystem")
	if d := r.NodeTroubles[0].Detail; !strings.Contains(d, "ib_core is not loaded") || !strings.Contains(d, "/sys is not at") {
		t.Error(d)
	}
}

func TestProbesLeaveNoDescriptorOpen(t *testing.T) {
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(fds)
	}
	p := New(Config{Root: onDisk(t, roce)})
	p.Probe(t.Context(), true)
	before := count()
	for range 20 {
		p.Probe(t.Context(), true)
	}
	if after := count(); after > before {
		t.Errorf("%d descriptors, then %d", before, after)
	}
}

func TestRootFSTellsDeviceNodes(t *testing.T) {
	r := rootFS("/")
	n, err := r.lstat("dev/null")
	if err != nil || !n.char || n.major != 1 || n.minor != 3 {
		t.Errorf("%+v %v", n, err)
	}
	if n, err := r.lstat("proc"); err != nil || n.char {
		t.Errorf("%+v %v", n, err)
	}
	if err := r.open("dev/null"); err != nil {
		t.Error(err)
	}
	if err := r.open("dev/no-such-node"); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
}

func TestHealthFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "health")
	p := newProber(Config{HealthFile: file, HealthFileMaxAge: time.Minute, Selectors: selectors(t, "mlx5_0")}, newTree(t, roce))
	want(t, p.Probe(t.Context(), false), "unknown CheckStale, mlx5_0/1 healthy")
	for _, step := range []struct {
		text string
		age  time.Duration
		want string
	}{
		{"OK\n", 0, "healthy, mlx5_0/1 healthy"},
		{"ERROR nvme list hangs\nmore", 0, "unhealthy CheckFailed, mlx5_0/1 healthy"},
		{"ERROR: nvme list hangs", 0, "unhealthy CheckFailed, mlx5_0/1 healthy"},
		{"OK", -time.Hour, "unknown CheckStale, mlx5_0/1 healthy"}, // the clock was set back
		{"OK", -30 * time.Second, "healthy, mlx5_0/1 healthy"},
		{"ERROR nvme list hangs", time.Hour, "unknown CheckStale, mlx5_0/1 healthy"},
		{"fine", 0, "unknown AttributeUnreadable, mlx5_0/1 healthy"},
		{"", 0, "unknown AttributeUnreadable, mlx5_0/1 healthy"},
		{"OK", 0, "healthy, mlx5_0/1 healthy"},
	} {
		written := time.Now().Add(-step.age)
		if err := errors.Join(os.WriteFile(file, []byte(step.text), 0o600), os.Chtimes(file, written, written)); err != nil {
			t.Fatal(err)
		}
		want(t, p.Probe(t.Context(), false), step.want)
	}
}
