package proxy

import (
	"fmt"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

func advertisesStorageHealth(t *testing.T, r *rig) (n int) {
	t.Helper()
	caps, err := r.node().NodeGetCapabilities(t.Context(), &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range caps.GetCapabilities() {
		if c.GetRpc().GetType() == csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH {
			n++
		}
	}
	return n
}

func TestStorageHealthIsAdvertisedOnce(t *testing.T) {
	own := &csi.NodeGetCapabilitiesResponse{Capabilities: []*csi.NodeServiceCapability{{Type: &csi.NodeServiceCapability_Rpc{
		Rpc: &csi.NodeServiceCapability_RPC{Type: csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH}}}}}
	for _, tc := range []struct {
		on     bool
		driver *csi.NodeGetCapabilitiesResponse
		want   int
	}{
		{false, &csi.NodeGetCapabilitiesResponse{}, 0},
		{true, &csi.NodeGetCapabilitiesResponse{}, 1},
		{true, own, 1},
		{false, own, 1},
	} {
		r := newRig(t, func(c *Config) { c.StorageHealth = tc.on })
		r.driver.replies[csi.Node_NodeGetCapabilities_FullMethodName] = tc.driver
		if got := advertisesStorageHealth(t, r); got != tc.want {
			t.Errorf("on %v: advertised %d times, want %d", tc.on, got, tc.want)
		}
	}
}

func TestStorageHealthOffIsForwarded(t *testing.T) {
	r := newRig(t, nil)
	r.health.set(closed())
	r.driver.set(func(string, grpc.ServerStream, frame) error { return status.Error(codes.Unimplemented, "no") })
	_, err := r.node().NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
	wantCode(t, "off", err, codes.Unimplemented)
}

func TestStorageHealthAddsTheGatesEntriesToTheDrivers(t *testing.T) {
	const degraded, unreachable = csi.StorageHealthErrorType_STORAGE_DEGRADED, csi.StorageHealthErrorType_STORAGE_UNREACHABLE
	down := probe.Port{Device: "mlx5_0", Number: 1, Verdict: probe.Unhealthy, Reason: probe.PhysLinkDown, Detail: "x"}
	alsoDown, noGID, unread := down, down, down
	alsoDown.Device, noGID.Device, unread.Device = "mlx5_1", "mlx5_2", "mlx5_3"
	noGID.Reason = probe.GIDMissing
	unread.Verdict, unread.Reason = probe.Unknown, probe.AttributeUnreadable
	up := probe.Port{Device: "mlx5_9", Number: 1, Verdict: probe.Healthy}
	driver := &backendHealth{Status: degraded, Reason: "PathLost", Message: "one of two servers"}
	for name, tc := range map[string]struct {
		verdict probe.Verdict
		ports   []probe.Port
		driver  *csi.NodeGetStorageHealthResponse // nil: Unimplemented
		want    []string
	}{
		"all is well":           {probe.Healthy, []probe.Port{up}, nil, nil},
		"some ports fail":       {probe.Healthy, []probe.Port{up, down}, nil, []string{fmt.Sprint(degraded, " PhysLinkDown mlx5_0/1 PhysLinkDown (x)")}},
		"the requirement fails": {probe.Unhealthy, []probe.Port{down}, nil, []string{fmt.Sprint(unreachable, " PhysLinkDown mlx5_0/1 PhysLinkDown (x)")}},
		"unknown is no failure": {probe.Unknown, []probe.Port{unread}, nil, nil},
		"one entry per Reason":  {probe.Unhealthy, []probe.Port{down, alsoDown, noGID}, nil, []string{fmt.Sprint(unreachable, " PhysLinkDown mlx5_0/1 PhysLinkDown (x), mlx5_1/1 PhysLinkDown (x)"), fmt.Sprint(unreachable, " GIDMissing mlx5_2/1 GIDMissing (x)")}},
		"the driver's come first": {probe.Healthy, []probe.Port{up, down}, &csi.NodeGetStorageHealthResponse{BackendHealth: []*backendHealth{driver}},
			[]string{fmt.Sprint(degraded, " PathLost one of two servers"), fmt.Sprint(degraded, " PhysLinkDown mlx5_0/1 PhysLinkDown (x)")}},
		"status and reason are unique": {probe.Healthy, []probe.Port{up, down}, &csi.NodeGetStorageHealthResponse{BackendHealth: []*backendHealth{{Status: degraded, Reason: "PhysLinkDown", Message: "mine"}}},
			[]string{fmt.Sprint(degraded, " PhysLinkDown mine")}},
	} {
		r := newRig(t, func(c *Config) { c.StorageHealth = true })
		r.health.set(&probe.Health{Result: probe.Result{Verdict: tc.verdict, Ports: tc.ports}})
		if tc.driver != nil {
			r.driver.replies[csi.Node_NodeGetStorageHealth_FullMethodName] = tc.driver
		} else {
			r.driver.set(func(string, grpc.ServerStream, frame) error { return status.Error(codes.Unimplemented, "no") })
		}
		reply, err := r.node().NodeGetStorageHealth(t.Context(), &csi.NodeGetStorageHealthRequest{})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var got []string
		for _, b := range reply.GetBackendHealth() {
			got = append(got, fmt.Sprint(b.GetStatus(), " ", b.GetReason(), " ", b.GetMessage()))
		}
		if fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%s:\n got %q\nwant %q", name, got, tc.want)
		}
	}
}

func TestStorageHealthHasSixteenEntriesAtMost(t *testing.T) {
	var own []*backendHealth
	for i := range maxBackends {
		own = append(own, &backendHealth{Reason: fmt.Sprint("R", i)})
	}
	if added := backends(closed(), own); len(added) != 0 {
		t.Errorf("%d entries above %d", len(added), maxBackends)
	}
}
