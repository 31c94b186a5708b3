package dirdriver

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ControllerGetCapabilities reports that volumes can be created and deleted.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: []*csi.ControllerServiceCapability{{
		Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{
			Type: csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		}},
	}}}, nil
}

// CreateVolume makes a directory. The volume's id is its name.
func (d *Driver) CreateVolume(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := required("name", req.GetName()); err != nil {
		return nil, err
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume capabilities are missing")
	}
	for _, c := range req.GetVolumeCapabilities() {
		if err := supported(c); err != nil {
			return nil, err
		}
	}
	if req.GetVolumeContentSource() != nil {
		return nil, status.Error(codes.InvalidArgument, "volumes cannot be made from other volumes")
	}
	capacity := req.GetCapacityRange().GetRequiredBytes()
	if limit := req.GetCapacityRange().GetLimitBytes(); limit > 0 && capacity > limit {
		return nil, status.Errorf(codes.OutOfRange, "%d bytes are required, but the limit is %d", capacity, limit)
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	want := volume{ID: req.GetName(), Capacity: capacity}
	switch have, err := d.volumes.get(want.ID); {
	case errors.Is(err, fs.ErrNotExist):
		if err := d.volumes.create(want); err != nil {
			return nil, internal(err)
		}
	case err != nil:
		return nil, internal(err)
	case have.Capacity != want.Capacity:
		return nil, status.Errorf(codes.AlreadyExists, "volume %q has %d bytes", want.ID, have.Capacity)
	}
	resp := &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: want.ID, CapacityBytes: capacity}}
	if t := d.topology(); t != nil {
		resp.Volume.AccessibleTopology = []*csi.Topology{t}
	}
	return resp, nil
}

// DeleteVolume removes the volume unless it is mounted. One that does not exist is a success.
func (d *Driver) DeleteVolume(_ context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := required("volume id", req.GetVolumeId()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	at, err := d.binder.users(d.volumes.data(req.GetVolumeId()))
	if err != nil {
		return nil, internal(err)
	}
	if len(at) > 0 {
		return nil, status.Errorf(codes.FailedPrecondition, "volume %q is mounted at %s", req.GetVolumeId(), strings.Join(at, ", "))
	}
	if err := d.volumes.remove(req.GetVolumeId()); err != nil {
		return nil, internal(err)
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ValidateVolumeCapabilities confirms every mount capability.
func (d *Driver) ValidateVolumeCapabilities(_ context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if err := required("volume id", req.GetVolumeId()); err != nil {
		return nil, err
	}
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "volume capabilities are missing")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.volumes.get(req.GetVolumeId()); errors.Is(err, fs.ErrNotExist) {
		return nil, status.Errorf(codes.NotFound, "there is no volume %q", req.GetVolumeId())
	} else if err != nil {
		return nil, internal(err)
	}
	for _, c := range req.GetVolumeCapabilities() {
		if err := supported(c); err != nil {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: status.Convert(err).Message()}, nil
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{
		Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: req.GetVolumeCapabilities()},
	}, nil
}
