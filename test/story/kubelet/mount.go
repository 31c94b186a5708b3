package kubelet

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Mount tries once to stage the volume, unless it is staged, and to publish it for the pod. For a
// volume that is published already it is the repeated publish of requiresRepublish, or of a kubelet
// that was restarted. An error is an *EventError; kubelet tries again later, see Retry.
func (k *Kubelet) Mount(ctx context.Context, podUID string, v Volume) error {
	s := k.state(podUID, v)
	defer s.mu.Unlock()
	if s.device.is != yes {
		if err := k.mountDevice(ctx, v); err != nil {
			s.device = s.device.failed(err)
			return &EventError{Operation: "MountVolume.MountDevice", PV: v.PV, Err: err}
		}
		s.device = mountState{is: yes}
	}
	if err := k.setUp(ctx, podUID, v); err != nil {
		s.pods[podUID] = s.pods[podUID].failed(err)
		return &EventError{Operation: "MountVolume.SetUp", PV: v.PV, Err: err}
	}
	s.pods[podUID] = mountState{is: yes}
	return nil
}

// mountDevice stages.
func (k *Kubelet) mountDevice(ctx context.Context, v Volume) error {
	drv, ok := k.Drivers.lookup(v.Driver)
	if !ok {
		return notRegistered("attacher.MountDevice failed to create newCsiDriverClient", v.Driver)
	}
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	stages, err := drv.can(ctx, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	if err != nil {
		return err
	}
	path := k.StagingPath(v)
	if err := os.MkdirAll(path, 0o750); err != nil {
		return fmt.Errorf("kubernetes.io/csi: attacher.MountDevice failed to create dir %q:  %w", path, err)
	}
	if !stages {
		return nil
	}
	if _, err := drv.can(ctx, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP); err != nil {
		return transientError{fmt.Errorf("kubernetes.io/csi: attacher.MountDevice failed to determine if the node service has VOLUME_MOUNT_GROUP capability: %w", err)}
	}
	if err := saveVolData(path, map[string]string{keyVolumeHandle: v.Handle, keyDriverName: v.Driver}); err != nil {
		return fmt.Errorf("kubernetes.io/csi: failed to save volume info data: %w", err)
	}
	mode, err := drv.accessMode(ctx)
	if err == nil {
		err = drv.call(ctx, func(ctx context.Context, c csi.NodeClient) error {
			_, err := c.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
				VolumeId:          v.Handle,
				PublishContext:    v.PublishContext,
				StagingTargetPath: path,
				VolumeCapability:  v.capability(mode),
				VolumeContext:     v.Context,
			})
			return uncertainUnlessFinal(err)
		})
	}
	return k.dropAfterFinal(err, path)
}

// setUp publishes.
func (k *Kubelet) setUp(ctx context.Context, podUID string, v Volume) error {
	drv, ok := k.Drivers.lookup(v.Driver)
	if !ok {
		return notRegistered("mounter.SetUpAt failed to get CSI client", v.Driver)
	}
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	stages, err := drv.can(ctx, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to check for STAGE_UNSTAGE_VOLUME capability: %w", err)
	}
	staging := ""
	if stages {
		staging = k.StagingPath(v)
	}
	path := k.TargetPath(podUID, v)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to create dir %q:  %w", filepath.Dir(path), err)
	}
	if _, err := drv.can(ctx, csi.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP); err != nil {
		return transientError{fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to determine if the node service has VOLUME_MOUNT_GROUP capability: %w", err)}
	}
	attachment := sha256.Sum256([]byte(v.Handle + v.Driver + k.cfg.NodeName))
	if err := saveVolData(path, map[string]string{
		keySpecVolID:    v.PV,
		keyVolumeHandle: v.Handle,
		keyDriverName:   v.Driver,
		keyNodeName:     k.cfg.NodeName,
		keyLifecycle:    "Persistent",
		keyAttachmentID: fmt.Sprintf("csi-%x", attachment),
	}); err != nil {
		return fmt.Errorf("kubernetes.io/csi: mounter.SetUpAt failed to save volume info data: %w", err)
	}
	mode, err := drv.accessMode(ctx)
	if err == nil {
		err = drv.call(ctx, func(ctx context.Context, c csi.NodeClient) error {
			_, err := c.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
				VolumeId:          v.Handle,
				PublishContext:    v.PublishContext,
				StagingTargetPath: staging,
				TargetPath:        path,
				VolumeCapability:  v.capability(mode),
				Readonly:          v.ReadOnly,
				VolumeContext:     v.Context,
			})
			return uncertainUnlessFinal(err)
		})
	}
	return k.dropAfterFinal(err, path)
}

func (v Volume) capability(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
			FsType:     v.FSType,
			MountFlags: v.MountFlags,
		}},
	}
}

func uncertainUnlessFinal(err error) error {
	if err == nil || final(err) {
		return err
	}
	return uncertainError{err}
}

// dropAfterFinal takes vol_data.json away after an error that kubelet holds to be final, and
// returns err.
func (k *Kubelet) dropAfterFinal(err error, path string) error {
	var ue uncertainError
	if err == nil || errors.As(err, &ue) {
		return err
	}
	if rmErr := removeMountDir(path); rmErr != nil {
		k.cfg.Log.Error("failed to remove mount dir after error", "path", path, "error", rmErr)
	}
	return err
}
