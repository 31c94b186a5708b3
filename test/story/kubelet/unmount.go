package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Unmount tries once to undo, for a pod that is deleted, what Mount did or may have done:
// unpublish, and unstage when no other pod uses the volume. A volume that kubelet holds to be not
// mounted is a success without any call. An error is an *EventError; kubelet tries again later.
func (k *Kubelet) Unmount(ctx context.Context, podUID string, v Volume) error {
	s := k.state(podUID, v)
	defer s.mu.Unlock()
	if s.pods[podUID].is != no {
		if err := k.tearDown(ctx, podUID, v); err != nil {
			return &EventError{Operation: "UnmountVolume.TearDown", PV: v.PV, Err: err}
		}
	}
	delete(s.pods, podUID)
	if s.used() || s.device.is == no {
		return nil
	}
	if err := k.unmountDevice(ctx, v); err != nil {
		return &EventError{Operation: "UnmountDevice", PV: v.PV, Err: err}
	}
	s.device = mountState{}
	return nil
}

// tearDown unpublishes.
func (k *Kubelet) tearDown(ctx context.Context, podUID string, v Volume) error {
	path := k.TargetPath(podUID, v)
	data, err := loadVolData(path)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: unmounter failed to load volume data file [%s]: %w", path, err)
	}
	drv, ok := k.Drivers.lookup(data[keyDriverName])
	if !ok {
		return notRegistered("Unmounter.TearDownAt failed to get CSI client", data[keyDriverName])
	}
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	err = drv.call(ctx, func(ctx context.Context, c csi.NodeClient) error {
		_, err := c.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: data[keyVolumeHandle], TargetPath: path})
		return err
	})
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed: %w", err)
	}
	if err := removeMountDir(path); err != nil {
		return fmt.Errorf("kubernetes.io/csi: Unmounter.TearDownAt failed to clean mount dir [%s]: %w", path, err)
	}
	return nil
}

// unmountDevice unstages.
func (k *Kubelet) unmountDevice(ctx context.Context, v Volume) error {
	path := k.StagingPath(v)
	data, err := loadVolData(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	drv, ok := k.Drivers.lookup(data[keyDriverName])
	if !ok {
		return notRegistered("attacher.UnmountDevice failed to create newCsiDriverClient", data[keyDriverName])
	}
	ctx, cancel := context.WithTimeout(ctx, csiTimeout)
	defer cancel()
	stages, err := drv.can(ctx, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	if err != nil {
		return fmt.Errorf("kubernetes.io/csi: attacher.UnmountDevice failed to check whether STAGE_UNSTAGE_VOLUME set: %w", err)
	}
	if stages {
		err := drv.call(ctx, func(ctx context.Context, c csi.NodeClient) error {
			_, err := c.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: data[keyVolumeHandle], StagingTargetPath: path})
			return err
		})
		if err != nil {
			return fmt.Errorf("kubernetes.io/csi: attacher.UnmountDevice failed: %w", err)
		}
	}
	if err := removeMountDir(path); err != nil {
		return fmt.Errorf("kubernetes.io/csi: failed to clean up global mount %s: %w", path, err)
	}
	return nil
}
