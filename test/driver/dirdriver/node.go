package dirdriver

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetInfo reports the node's id and the topology the driver was given.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.cfg.NodeID, AccessibleTopology: d.topology()}, nil
}

func (d *Driver) topology() *csi.Topology {
	if len(d.cfg.Topology) == 0 {
		return nil
	}
	return &csi.Topology{Segments: d.cfg.Topology}
}

// NodeGetCapabilities reports staging (unless NoStage), stats and expansion.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	types := []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	}
	if !d.cfg.NoStage {
		types = append(types, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	}
	resp := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range types {
		resp.Capabilities = append(resp.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return resp, nil
}

// NodeStageVolume binds the volume's directory to the staging path.
func (d *Driver) NodeStageVolume(_ context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	if d.cfg.NoStage {
		return nil, status.Error(codes.Unimplemented, "this driver does not stage")
	}
	if err := required("volume id", req.GetVolumeId(), "staging target path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	if err := supported(req.GetVolumeCapability()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.volumes.ensure(req.GetVolumeId()); err != nil {
		return nil, internal(err)
	}
	if err := d.bindOnce(req.GetVolumeId(), req.GetStagingTargetPath(), false); err != nil {
		return nil, err
	}
	return &csi.NodeStageVolumeResponse{}, nil
}

// NodeUnstageVolume undoes NodeStageVolume. A volume that is not staged is a success.
func (d *Driver) NodeUnstageVolume(_ context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	if d.cfg.NoStage {
		return nil, status.Error(codes.Unimplemented, "this driver does not stage")
	}
	if err := required("volume id", req.GetVolumeId(), "staging target path", req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.unbind(req.GetVolumeId(), req.GetStagingTargetPath()); err != nil {
		return nil, err
	}
	return &csi.NodeUnstageVolumeResponse{}, nil
}

// NodePublishVolume makes the target directory and binds what is staged to it.
func (d *Driver) NodePublishVolume(_ context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	id, target, staging := req.GetVolumeId(), req.GetTargetPath(), req.GetStagingTargetPath()
	if err := required("volume id", id, "target path", target); err != nil {
		return nil, err
	}
	if err := supported(req.GetVolumeCapability()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	src := d.volumes.data(id)
	if d.cfg.NoStage {
		if err := d.volumes.ensure(id); err != nil {
			return nil, internal(err)
		}
	} else {
		if staging == "" {
			return nil, status.Error(codes.FailedPrecondition, "staging target path is missing")
		}
		at, err := d.binder.at(staging)
		if err != nil {
			return nil, internal(err)
		}
		if !at.is(src) {
			return nil, status.Errorf(codes.FailedPrecondition, "volume %q is not staged at %s", id, staging)
		}
	}
	if err := os.Mkdir(target, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, internal(err)
	}
	if err := d.bindOnce(id, target, req.GetReadonly()); err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// NodeUnpublishVolume undoes NodePublishVolume and removes the target directory.
func (d *Driver) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if err := required("volume id", req.GetVolumeId(), "target path", req.GetTargetPath()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.unbind(req.GetVolumeId(), req.GetTargetPath()); err != nil {
		return nil, err
	}
	if err := os.Remove(req.GetTargetPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, internal(err)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats reports the file system at the path, which must show the volume.
func (d *Driver) NodeGetVolumeStats(_ context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	if err := required("volume id", req.GetVolumeId(), "volume path", req.GetVolumePath()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.showsAt(req.GetVolumeId(), req.GetVolumePath()); err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	if err := unix.Statfs(req.GetVolumePath(), &st); err != nil {
		return nil, internal(pathError("statfs", req.GetVolumePath(), err))
	}
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{
			Unit:      csi.VolumeUsage_BYTES,
			Total:     int64(st.Blocks) * st.Bsize,
			Used:      int64(st.Blocks-st.Bfree) * st.Bsize,
			Available: int64(st.Bavail) * st.Bsize,
		},
		{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(st.Files),
			Used:      int64(st.Files - st.Ffree),
			Available: int64(st.Ffree),
		},
	}}, nil
}

// NodeExpandVolume has nothing to do: a directory is as large as its disk.
func (d *Driver) NodeExpandVolume(_ context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	if err := required("volume id", req.GetVolumeId(), "volume path", req.GetVolumePath()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.showsAt(req.GetVolumeId(), req.GetVolumePath()); err != nil {
		return nil, err
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: req.GetCapacityRange().GetRequiredBytes()}, nil
}

// bindOnce binds the volume to dst unless it is bound there already.
func (d *Driver) bindOnce(id, dst string, readonly bool) error {
	src := d.volumes.data(id)
	at, err := d.binder.at(dst)
	switch {
	case err != nil:
		return internal(err)
	case !at.any:
		return internal(d.binder.bind(src, dst, readonly))
	case !at.is(src):
		return status.Errorf(codes.AlreadyExists, "%s holds something other than volume %q", dst, id)
	case at.readonly != readonly:
		return status.Errorf(codes.AlreadyExists, "volume %q is at %s with readonly=%t", id, dst, at.readonly)
	default:
		return nil
	}
}

// unbind takes the volume away from dst, and touches nothing else that may be there.
func (d *Driver) unbind(id, dst string) error {
	at, err := d.binder.at(dst)
	if err != nil {
		return internal(err)
	}
	if at.any && at.src != nil && !at.is(d.volumes.data(id)) {
		return status.Errorf(codes.FailedPrecondition, "%s holds something other than volume %q", dst, id)
	}
	return internal(d.binder.unbind(dst))
}

// showsAt is nil when the volume exists and is staged or published at path.
func (d *Driver) showsAt(id, path string) error {
	if _, err := d.volumes.get(id); errors.Is(err, fs.ErrNotExist) {
		return status.Errorf(codes.NotFound, "there is no volume %q", id)
	} else if err != nil {
		return internal(err)
	}
	at, err := d.binder.at(path)
	if err != nil {
		return internal(err)
	}
	if !at.is(d.volumes.data(id)) {
		return status.Errorf(codes.NotFound, "volume %q is not at %s", id, path)
	}
	return nil
}

// required takes pairs of a field's name and its value.
func required(pairs ...string) error {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] == "" {
			return status.Errorf(codes.InvalidArgument, "%s is missing", pairs[i])
		}
	}
	return nil
}

func supported(c *csi.VolumeCapability) error {
	switch {
	case c == nil:
		return status.Error(codes.InvalidArgument, "volume capability is missing")
	case c.GetBlock() != nil:
		return status.Error(codes.InvalidArgument, "this driver has no block volumes")
	default:
		return nil
	}
}

// internal is the status for trouble with our own disk; nil for nil.
func internal(err error) error {
	if err == nil {
		return nil
	}
	return status.Error(codes.Internal, err.Error())
}
