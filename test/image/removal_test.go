package image_test

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/image/bundle"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

// removal takes one thing away from the gate of an example.
type removal struct {
	example string
	edit    func(*bundle.Container)
	// says is what the gate writes about it: its last words if ends, else a line of its log. KUBELET stands for kubelet's
	// root.
	says string
	ends bool
}

// mounts are what the gate says without each of its mounts, by name.
var mounts = map[string]removal{
	"driver-socket": {says: `CSI driver not reachable at /csi/csi.sock: .*; there is no /csi: mount the volume that the driver puts its socket in`},
	"gate-socket":   {says: `put socket /gate/csi.sock in place: no such file or directory; mount the host's directory at /gate`},
	"registration": {ends: true, says: `csi-rdma-gate: --plugin-registration-path="/registration": no such file or directory; ` +
		`mount it into the container or write the directory where it is`},
	"kubelet": {ends: true, says: `csi-rdma-gate: --kubelet-dir="KUBELET": no such file or directory; ` +
		`mount it into the container or write the directory where it is`},
	"host-sys": {says: `NoSubsystem \(/sys/class/infiniband does not exist: ib_core is not loaded, or the host's /sys is not at /host/sys\)`},
	"host-dev": {says: `mlx5_0/1 VerbsMissing \(/dev/infiniband/uverbs0 does not exist\)`},
}

// removals are the others.
var removals = map[string]removal{
	"what others mount": {
		edit: mountEdit("kubelet", func(m *corev1.VolumeMount) { m.MountPropagation = nil }),
		ends: true,
		says: `csi-rdma-gate: --kubelet-dir: KUBELET is a private mount, so the mounts of other containers below KUBELET stay ` +
			`invisible here; mount it with mountPropagation: HostToContainer`,
	},
	"writing to the gate socket's directory": {
		edit: mountEdit("gate-socket", readOnly),
		says: `put socket /gate/csi.sock in place: read-only file system; /gate needs a writable mount of its own`,
	},
	"writing to the registry": {
		edit: mountEdit("registration", readOnly),
		says: `put socket /registration/nfs\.example\.com-reg\.sock in place: read-only file system; /registration needs a writable mount`,
	},
	"root": {
		edit: func(c *bundle.Container) { *c.Container.SecurityContext.RunAsUser = 65532 },
		says: `put socket /gate/csi.sock in place: permission denied; /gate is not writable for user 65532, run as its owner`,
	},
	"the host's network": {
		edit: func(c *bundle.Container) { c.Pod.HostNetwork = false },
		says: `The interfaces of the selected ports are not in this network namespace`,
	},
	"the node's name": {
		edit: func(c *bundle.Container) { c.Container.Env = nil },
		ends: true,
		says: `csi-rdma-gate: --node-name="\$\(NODE_NAME\)": kubelet left \$\(NODE_NAME\) as it is, since the container has no such variable; add it to env`,
	},
	"the permission to open devices": {
		example: verbsOpen,
		edit:    func(c *bundle.Container) { c.Container.SecurityContext.Privileged = nil },
		says:    `mlx5_0/1 VerbsNotPermitted \(open /dev/infiniband/uverbs0: operation not permitted\)`,
	},
}

func readOnly(m *corev1.VolumeMount) { m.ReadOnly = true }

// mountEdit edits the gate's mount of a volume.
func mountEdit(volume string, edit func(*corev1.VolumeMount)) func(*bundle.Container) {
	return func(c *bundle.Container) {
		for i := range c.Container.VolumeMounts {
			if m := &c.Container.VolumeMounts[i]; m.Name == volume {
				edit(m)
			}
		}
	}
}

// without takes the gate's mount of a volume away.
func without(volume string) func(*bundle.Container) {
	return func(c *bundle.Container) {
		c.Container.VolumeMounts = slices.DeleteFunc(c.Container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume })
	}
}

// Whatever one thing is taken away from an example, the gate says what it lacks. With all of them it says nothing of that.
func TestWhateverIsTakenAwayIsMissed(t *testing.T) {
	_, driver := storytest.Build(t)
	all := maps.Clone(removals)
	for _, m := range example(t, plain, newSimulated(t, driver).at).Container.VolumeMounts {
		r, known := mounts[m.Name]
		if !known {
			t.Errorf("nobody misses the mount %s", m.Name)
			continue
		}
		r.edit = without(m.Name)
		all["mount "+m.Name] = r
	}
	for name, r := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r.try(t, driver)
		})
	}
	for _, name := range []string{plain, verbsOpen, before129} {
		t.Run("nothing of "+name, func(t *testing.T) {
			t.Parallel()
			nothingIsMissed(t, driver, name, all)
		})
	}
}

func (r removal) try(t *testing.T, driver string) {
	name := r.example
	if name == "" {
		name = plain
	}
	g := startGate(t, driver, name, r.edit)
	says := regexp.MustCompile(strings.ReplaceAll(r.says, "KUBELET", regexp.QuoteMeta(g.node.at.Kubelet)))
	if err := g.log.await(t.Context(), says.MatchString); err != nil {
		t.Fatalf("it does not say %s:\n%s", says, g.log)
	}
	if !r.ends {
		return
	}
	select {
	case err := <-g.died:
		if !strings.Contains(err.Error(), "exit status 1") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it goes on all the same")
	}
}

// nothingIsMissed mounts a volume and looks for complaints.
func nothingIsMissed(t *testing.T, driver, name string, all map[string]removal) {
	g := startGate(t, driver, name, func(*bundle.Container) {})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := g.node.kubelet.Drivers.Wait(ctx, driverName, true); err != nil {
		t.Fatalf("%v\n%s", err, g.log)
	}
	volume := kubelet.Volume{PV: "pv-1", Driver: driverName, Handle: "vol-1"}
	for _, do := range []func(context.Context, string, kubelet.Volume) error{g.node.kubelet.Mount, g.node.kubelet.Unmount} {
		if err := kubelet.Retry(ctx, func(ctx context.Context) error { return do(ctx, "pod-1", volume) }); err != nil {
			t.Fatalf("%v\n%s", err, g.log)
		}
	}
	for what, r := range all {
		says := regexp.MustCompile(strings.ReplaceAll(r.says, "KUBELET", regexp.QuoteMeta(g.node.at.Kubelet)))
		if says.MatchString(g.log.String()) {
			t.Errorf("it misses %s:\n%s", what, g.log)
		}
	}
}

// Each restriction is what keeps the process from that power: confined notices when it is lifted.
func TestEachRestrictionIsInForce(t *testing.T) {
	_, driver := storytest.Build(t)
	for name, lift := range map[string]func(*corev1.SecurityContext){
		"none":         nil,
		"capabilities": func(sc *corev1.SecurityContext) { sc.Capabilities = nil },
		"escalation":   func(sc *corev1.SecurityContext) { sc.AllowPrivilegeEscalation = nil },
		"root fs":      func(sc *corev1.SecurityContext) { sc.ReadOnlyRootFilesystem = nil },
		"seccomp":      func(sc *corev1.SecurityContext) { sc.SeccompProfile = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := startGate(t, driver, plain, func(c *bundle.Container) {
				if lift != nil {
					lift(c.Container.SecurityContext)
				}
			})
			if err := g.log.await(t.Context(), func(text string) bool { return strings.Contains(text, `"Starting"`) }); err != nil {
				t.Fatalf("%v\n%s", err, g.log)
			}
			pid, err := pidOf(g.id)
			if err != nil {
				t.Fatal(err)
			}
			if err := confined(pid); (err != nil) != (lift != nil) {
				t.Errorf("confined: %v", err)
			}
		})
	}
}
