package bundle

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
)

// mounts are the container's volumeMounts as bind mounts, parents before children.
func (c Container) mounts() (oci.SpecOpts, error) {
	volumeMounts := slices.Clone(c.Container.VolumeMounts)
	slices.SortStableFunc(volumeMounts, func(a, b corev1.VolumeMount) int {
		return strings.Count(a.MountPath, "/") - strings.Count(b.MountPath, "/")
	})
	var mounts []specs.Mount
	rootfs := ""
	for _, m := range volumeMounts {
		if _, err := c.Pod.Volume(m.Name); err != nil {
			return nil, err
		}
		source, ok := c.Volumes[m.Name]
		if !ok {
			return nil, fmt.Errorf("no directory stands for volume %s", m.Name)
		}
		propagation := propagationOf(m)
		if propagation != "rprivate" && rootfs != "rshared" {
			rootfs = propagation
		}
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		mounts = append(mounts, specs.Mount{
			Type: "bind", Source: source, Destination: m.MountPath, Options: []string{"rbind", propagation, access},
		})
	}
	return func(_ context.Context, _ oci.Client, _ *containers.Container, s *specs.Spec) error {
		s.Mounts = append(s.Mounts, mounts...)
		if rootfs != "" {
			s.Linux.RootfsPropagation = rootfs
		}
		return nil
	}, nil
}

func propagationOf(m corev1.VolumeMount) string {
	if m.MountPropagation == nil {
		return "rprivate"
	}
	switch *m.MountPropagation {
	case corev1.MountPropagationBidirectional:
		return "rshared"
	case corev1.MountPropagationHostToContainer:
		return "rslave"
	default:
		return "rprivate"
	}
}
