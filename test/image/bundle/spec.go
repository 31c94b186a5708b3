// Package bundle makes of a container in a pod what runc can run: an OCI bundle with the security settings, mounts,
// devices and namespaces that containerd gives such a container for kubelet. Where containerd exports the code it is
// used; its CRI plugin is internal, so its choices are made here again (internal/cri/server/container_create.go of
// v2.4.2, buildLinuxSpec).
package bundle

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/examples/manifest"
)

// Container is a container on its way into a bundle.
type Container struct {
	// ID is runc's name for it, and that of its control group.
	ID string
	// Image is what the image says about how to run it.
	Image imagespec.ImageConfig
	Pod   manifest.Pod
	// Container is one of Pod's.
	Container *corev1.Container
	// Args stand after those of the manifest.
	Args []string
	// Fields are what the downward API would know.
	Fields manifest.Fields
	// Volumes are the directories of this machine that stand for the pod's volumes, by name.
	Volumes map[string]string
	// HostNetwork is the path of the network namespace that stands for the host's; empty means this machine's.
	HostNetwork string
	// Devices are paths of device nodes that a device plugin would add.
	Devices []string
}

// Spec is config.json.
func (c Container) Spec(ctx context.Context) (*specs.Spec, error) {
	env, err := manifest.Environment(c.Container, c.Fields)
	if err != nil {
		return nil, err
	}
	user, err := c.user()
	if err != nil {
		return nil, err
	}
	command := c.Image.Entrypoint
	if len(c.Container.Command) > 0 {
		command = c.Container.Command
	}
	args := append(manifest.Args(c.Container, env), c.Args...)
	opts := []oci.SpecOpts{
		oci.WithoutRunMount,
		withoutLimits,
		oci.WithProcessArgs(slices.Concat(command, args)...),
		oci.WithDefaultPathEnv,
		oci.WithEnv(slices.Concat(c.Image.Env, env)),
		oci.WithNewPrivileges, // unless the security context says otherwise
		oci.WithDefaultUnixDevices,
		user,
		oci.WithCgroup("/" + c.ID),
	}
	opts = append(opts, c.network()...)
	opts = append(opts, c.security()...)
	for _, device := range c.Devices {
		opts = append(opts, oci.WithDevices(device, device, "rw"))
	}
	if limit := c.Container.Resources.Limits.Memory().Value(); limit > 0 {
		opts = append(opts, oci.WithMemoryLimit(uint64(limit)))
	}
	mounts, err := c.mounts()
	if err != nil {
		return nil, err
	}
	opts = append(opts, mounts)
	ctx = namespaces.WithNamespace(ctx, "k8s.io")
	return oci.GenerateSpecWithPlatform(ctx, nil, "linux", &containers.Container{ID: c.ID}, opts...)
}

func withoutLimits(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
	s.Process.Rlimits = nil
	return nil
}

// user is runAsUser and runAsGroup, and the image's where they are not given.
func (c Container) user() (oci.SpecOpts, error) {
	var ids [2]uint32
	parts := strings.SplitN(c.Image.User, ":", 2)
	for i, text := range parts {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil && text != "" {
			return nil, fmt.Errorf("the image's user %q is not a number: kubelet could not tell whether it is root", c.Image.User)
		}
		ids[i] = uint32(n)
	}
	sc := c.securityContext()
	if sc.RunAsUser != nil {
		ids = [2]uint32{uint32(*sc.RunAsUser), 0}
	}
	if sc.RunAsGroup != nil {
		ids[1] = uint32(*sc.RunAsGroup)
	}
	return oci.WithUIDGID(ids[0], ids[1]), nil
}

func (c Container) network() []oci.SpecOpts {
	switch {
	case !c.Pod.HostNetwork:
		return nil // a namespace of its own
	case c.HostNetwork == "":
		return []oci.SpecOpts{oci.WithHostNamespace(specs.NetworkNamespace)}
	default:
		return []oci.SpecOpts{oci.WithLinuxNamespace(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: c.HostNetwork})}
	}
}

func (c Container) securityContext() *corev1.SecurityContext {
	if c.Container.SecurityContext == nil {
		return &corev1.SecurityContext{}
	}
	return c.Container.SecurityContext
}

func (c Container) security() []oci.SpecOpts {
	sc := c.securityContext()
	opts := capabilities(sc.Capabilities)
	profile := sc.SeccompProfile
	if profile == nil && c.Pod.SecurityContext != nil {
		profile = c.Pod.SecurityContext.SeccompProfile
	}
	switch {
	case sc.Privileged != nil && *sc.Privileged:
		// After the capabilities, and without a seccomp profile: that is what privileged means to containerd.
		opts = append(opts, oci.WithPrivileged, oci.WithHostDevices, oci.WithAllDevicesAllowed)
	case profile != nil && profile.Type == corev1.SeccompProfileTypeRuntimeDefault:
		opts = append(opts, seccomp.WithDefaultProfile())
	}
	if sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation {
		opts = append(opts, oci.WithNoNewPrivileges)
	}
	if sc.ReadOnlyRootFilesystem != nil && *sc.ReadOnlyRootFilesystem {
		opts = append(opts, oci.WithRootFSReadonly())
	}
	return opts
}

// capabilities change containerd's default set, which GenerateSpec begins with.
func capabilities(c *corev1.Capabilities) []oci.SpecOpts {
	if c == nil {
		return nil
	}
	var opts []oci.SpecOpts
	if slices.Contains(c.Drop, "ALL") {
		opts = append(opts, oci.WithCapabilities(nil))
	} else {
		opts = append(opts, oci.WithDroppedCapabilities(names(c.Drop)))
	}
	return append(opts, oci.WithAddedCapabilities(names(c.Add)))
}

// names are the kernel's, which Kubernetes writes without their prefix.
func names(list []corev1.Capability) []string {
	var all []string
	for _, c := range list {
		all = append(all, "CAP_"+string(c))
	}
	return all
}
