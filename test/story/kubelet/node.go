package kubelet

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// call runs f on a connection of its own, as kubelet does for every call.
func (d Driver) call(ctx context.Context, f func(context.Context, csi.NodeClient) error) error {
	conn, err := newConn(d.Endpoint, grpc.WithAuthority("localhost"))
	if err != nil {
		return err
	}
	defer conn.Close()
	return f(ctx, csi.NewNodeClient(conn))
}

// can says whether the driver reports the capability. Kubelet never remembers the answer.
func (d Driver) can(ctx context.Context, want csi.NodeServiceCapability_RPC_Type) (bool, error) {
	var resp *csi.NodeGetCapabilitiesResponse
	err := d.call(ctx, func(ctx context.Context, c csi.NodeClient) (err error) {
		resp, err = c.NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
		return err
	})
	return slices.ContainsFunc(resp.GetCapabilities(), func(c *csi.NodeServiceCapability) bool {
		return c.GetRpc().GetType() == want
	}), err
}

// accessMode is ReadWriteOnce in the driver's terms.
func (d Driver) accessMode(ctx context.Context) (csi.VolumeCapability_AccessMode_Mode, error) {
	multi, err := d.can(ctx, csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER)
	if multi {
		return csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, err
	}
	return csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, err
}

// final says whether err, of NodeStageVolume or NodePublishVolume, proves that the driver is not
// and will not be mounting.
func final(err error) bool {
	st, ok := status.FromError(err)
	if !ok {
		return false
	}
	switch st.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	default:
		return true
	}
}
