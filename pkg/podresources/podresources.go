// Package podresources answers one question: which extended resources does kubelet advertise for
// this node?
//
// It asks kubelet's pod-resources API over a Unix socket, so no API server is needed. A resource
// that is allocated by DRA instead of a device plugin is not among those that the API tells of.
package podresources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// maxReply is what kubelet's own clients take: a node can have thousands of devices.
const maxReply = 16 << 20

// Advertised returns the names of the resources of which at least one device is healthy, sorted.
//
// Kubelet lists the healthy devices only. It drops a device plugin's devices the moment its
// connection ends, and after its own restart knows of none until the plugin has registered again
// (pkg/kubelet/cm/devicemanager: GetAllocatableDevices filters by healthyDevices, which
// PluginDisconnected and readCheckpoint leave empty; read in v1.34.3 and v1.37.2). The node's
// capacity, in contrast, keeps a lost plugin's devices for five more minutes.
func Advertised(ctx context.Context, socket string) ([]string, error) {
	// Dialled here, so that the error is short and the attempt is one.
	unix, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		return nil, op.Err // less the path, which the caller knows
	} else if err != nil {
		return nil, err
	}
	defer unix.Close()
	dialled := make(chan net.Conn, 1)
	dialled <- unix
	conn, err := grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-dialled:
				return c, nil
			default:
				return nil, net.ErrClosed
			}
		}),
		grpc.WithDisableServiceConfig(), // it would be looked for in DNS
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxReply)))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	reply, err := podresourcesapi.NewPodResourcesListerClient(conn).GetAllocatableResources(ctx, &podresourcesapi.AllocatableResourcesRequest{})
	if status.Code(err) == codes.DeadlineExceeded {
		return nil, context.DeadlineExceeded
	} else if err != nil {
		return nil, fmt.Errorf("GetAllocatableResources: %s: %s", status.Code(err), status.Convert(err).Message())
	}
	names := make(map[string]bool)
	for _, d := range reply.GetDevices() {
		if len(d.GetDeviceIds()) > 0 {
			names[d.GetResourceName()] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), nil
}
