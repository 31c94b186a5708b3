package proxy

import (
	"context"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// described are the calls that are answered while the driver is away.
var described = []string{
	csi.Identity_GetPluginInfo_FullMethodName,
	csi.Identity_GetPluginCapabilities_FullMethodName,
	csi.Node_NodeGetCapabilities_FullMethodName,
	csi.Node_NodeGetInfo_FullMethodName,
}

func TestTheLastReplyStandsInWhileTheDriverIsGone(t *testing.T) {
	r := newRig(t, nil)
	before := map[string]frame{}
	for _, method := range described {
		reply, err := r.raw(t.Context(), method, nil)
		if err != nil {
			t.Fatal(err)
		}
		before[method] = reply
	}
	r.driver.stop()
	for _, method := range described {
		reply, err := r.raw(r.ctx(10*time.Second), method, nil)
		if err != nil || !proto.Equal(decodeAny(method, reply), decodeAny(method, before[method])) {
			t.Errorf("%s: %q, %v; want %q", method, reply, err, before[method])
		}
	}
	wantCode(t, "stage", r.stage("v", "/s"), codes.Unavailable)
	if _, err := r.identity().Probe(r.ctx(10*time.Second), &csi.ProbeRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("Probe: %v; a probe must never be answered from memory", err)
	}
}

// decodeAny decodes a reply, since the order of a map's entries may differ.
func decodeAny(method string, f frame) proto.Message {
	m := map[string]proto.Message{
		csi.Identity_GetPluginInfo_FullMethodName:         &csi.GetPluginInfoResponse{},
		csi.Identity_GetPluginCapabilities_FullMethodName: &csi.GetPluginCapabilitiesResponse{},
		csi.Node_NodeGetCapabilities_FullMethodName:       &csi.NodeGetCapabilitiesResponse{},
		csi.Node_NodeGetInfo_FullMethodName:               &csi.NodeGetInfoResponse{},
	}[method]
	_ = proto.Unmarshal(f, m)
	return m
}

func TestTheLastReplyStandsInForASilentDriver(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Timeout = 20 * time.Millisecond })
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.driver.set(silent)
	info, err := r.node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if err != nil || info.GetNodeId() != "node-1" {
		t.Errorf("%v, %v", info, err)
	}
}

func silent(_ string, stream grpc.ServerStream, _ frame) error {
	<-stream.Context().Done()
	return stream.Context().Err()
}

// What a driver says that always takes its time is learnt all the same, for the next caller.
func TestASlowDriversNewReplyIsLearntInTheBackground(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Timeout = 20 * time.Millisecond })
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	answer := make(chan struct{})
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		select {
		case <-answer:
			var f frame
			f, _ = proto.Marshal(&csi.NodeGetInfoResponse{NodeId: "updated"})
			return stream.SendMsg(&f)
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	})
	for range 3 {
		info, err := r.node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
		if err != nil || info.GetNodeId() != "node-1" {
			t.Errorf("%v, %v", info, err)
		}
	}
	close(answer)
	for t.Context().Err() == nil {
		if info, err := r.node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{}); err == nil && info.GetNodeId() == "updated" {
			return
		}
	}
}

func TestTheDriversOwnErrorIsNotCoveredUp(t *testing.T) {
	r := newRig(t, nil)
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.driver.set(func(string, grpc.ServerStream, frame) error { return status.Error(codes.Internal, "no") })
	_, err := r.node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	wantCode(t, "NodeGetInfo", err, codes.Internal)
}

func TestAnAbsentDriverIsUnavailable(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Timeout = 20 * time.Millisecond })
	r.driver.stop()
	for _, method := range described {
		_, err := r.raw(t.Context(), method, nil)
		wantCode(t, method, err, codes.Unavailable)
	}
}

func TestAHungDriverKeepsTheCallerNoLongerThanItsDeadline(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Timeout = 20 * time.Millisecond })
	r.driver.set(silent)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := r.node().NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	wantCode(t, "NodeGetInfo, never answered before", err, codes.DeadlineExceeded)
}

func TestAReplyWithoutANameDoesNotReplaceTheOneWithIt(t *testing.T) {
	r := newRig(t, nil)
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.driver.replies[csi.Identity_GetPluginInfo_FullMethodName] = &csi.GetPluginInfoResponse{}
	if _, err := r.identity().GetPluginInfo(t.Context(), &csi.GetPluginInfoRequest{}); err != nil {
		t.Fatal(err)
	}
	if name, err := r.DriverName(t.Context()); name != "rdma.example.com" || err != nil {
		t.Errorf("name %q, %v", name, err)
	}
}

func TestReadyNeedsEverythingThatKubeletAsks(t *testing.T) {
	r := newRig(t, nil)
	fail := csi.Node_NodeGetInfo_FullMethodName
	r.driver.set(func(method string, stream grpc.ServerStream, _ frame) error {
		if method == fail {
			return status.Error(codes.Internal, "not yet")
		}
		var f frame
		f, _ = proto.Marshal(&csi.GetPluginInfoResponse{Name: "x"})
		return stream.SendMsg(&f)
	})
	if err := r.Ready(t.Context()); err == nil {
		t.Error("ready although NodeGetInfo fails")
	}
	fail = ""
	if err := r.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}

func nodeInfo(t *testing.T, r *rig) map[string]string {
	t.Helper()
	info, err := r.node().NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if info.GetNodeId() != "node-1" || info.GetMaxVolumesPerNode() != 7 {
		t.Errorf("the driver's own fields are gone: %v", info)
	}
	return info.GetAccessibleTopology().GetSegments()
}

func advertisesTopology(t *testing.T, r *rig) bool {
	t.Helper()
	caps, err := r.identity().GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return hasTopology(caps)
}

func TestTopology(t *testing.T) {
	const own, prefix = "rdma.example.com/zone", "rdma.example.com/"
	injected := map[string]string{prefix + "rdma": "true", prefix + "rdma-link-layer": "infiniband", prefix + "rdma-fabric": "fec0000000000001"}
	for name, tc := range map[string]struct {
		mode   TopologyMode
		driver map[string]string
		config func(*TopologyConfig)
		want   map[string]string
	}{
		"auto, driver without":  {mode: TopologyAuto, want: injected},
		"auto, driver with":     {mode: TopologyAuto, driver: map[string]string{own: "a"}, want: map[string]string{own: "a"}},
		"merge, driver without": {mode: TopologyMerge, want: injected},
		"merge adds": {mode: TopologyMerge, driver: map[string]string{own: "a"},
			want: with(injected, own, "a")},
		"merge, driver's keys win": {mode: TopologyMerge, driver: map[string]string{prefix + "rdma": "maybe"},
			want: with(injected, prefix+"rdma", "maybe")},
		"merge, driver's prefix": {mode: TopologyMerge, driver: map[string]string{"t.example.com/z": "a"},
			want: map[string]string{"t.example.com/z": "a", "t.example.com/rdma": "true", "t.example.com/rdma-link-layer": "infiniband", "t.example.com/rdma-fabric": "fec0000000000001"}},
		"merge, driver's prefix is reserved": {mode: TopologyMerge, driver: map[string]string{"topology.kubernetes.io/zone": "a"},
			want: with(injected, "topology.kubernetes.io/zone", "a")},
		"off, driver without": {mode: TopologyOff},
		"off, driver with":    {mode: TopologyOff, driver: map[string]string{own: "a"}, want: map[string]string{own: "a"}},
		"prefix and segments": {mode: TopologyAuto, config: func(c *TopologyConfig) {
			c.Prefix, c.Segments = "s.example.com", map[string]string{"rail": "r1", "other.example.com/switch": "sw2"}
		}, want: map[string]string{"s.example.com/rdma": "true", "s.example.com/rdma-link-layer": "infiniband", "s.example.com/rdma-fabric": "fec0000000000001",
			"s.example.com/rail": "r1", "other.example.com/switch": "sw2"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *Config) {
				c.Topology.Mode = tc.mode
				if tc.config != nil {
					tc.config(&c.Topology)
				}
			})
			if tc.driver != nil {
				r.driver.replies[csi.Node_NodeGetInfo_FullMethodName] = &csi.NodeGetInfoResponse{
					NodeId: "node-1", MaxVolumesPerNode: 7, AccessibleTopology: &csi.Topology{Segments: tc.driver}}
			}
			if got := nodeInfo(t, r); !equal(got, tc.want) {
				t.Errorf("\n got %v\nwant %v", got, tc.want)
			}
			// A driver that reports segments has the capability itself; this one lacks it.
			if got, want := advertisesTopology(t, r), len(tc.want) > len(tc.driver); got != want {
				t.Errorf("VOLUME_ACCESSIBILITY_CONSTRAINTS %v, want %v", got, want)
			}
		})
	}
}

func with(m map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range m {
		if k != key {
			out[k] = v
		}
	}
	return out
}

func equal(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

func TestTheCapabilityIsNotAddedTwice(t *testing.T) {
	r := newRig(t, nil)
	own := &csi.GetPluginCapabilitiesResponse{Capabilities: []*csi.PluginCapability{{Type: &csi.PluginCapability_Service_{
		Service: &csi.PluginCapability_Service{Type: csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS}}}}}
	r.driver.replies[csi.Identity_GetPluginCapabilities_FullMethodName] = own
	caps, err := r.identity().GetPluginCapabilities(t.Context(), &csi.GetPluginCapabilitiesRequest{})
	if err != nil || !proto.Equal(caps, own) {
		t.Errorf("%v, %v", caps, err)
	}
}

func TestHealthNeverChangesTopology(t *testing.T) {
	r := newRig(t, nil)
	before := nodeInfo(t, r)
	r.health.set(closed())
	if after := nodeInfo(t, r); !equal(before, after) {
		t.Errorf("%v became %v", before, after)
	}
}

func TestTopologyIsFrozenWhileRegistered(t *testing.T) {
	r := newRig(t, nil)
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := r.FreezeTopology()
	gone := closed()
	gone.Ports = nil
	r.health.set(gone)
	if got := nodeInfo(t, r); !equal(got, before) || len(got) != 3 {
		t.Errorf("the device vanished: %v, want %v", got, before)
	}
	r.ThawTopology()
	if got := nodeInfo(t, r); len(got) != 0 {
		t.Errorf("not registered any more: %v, want nothing", got)
	}
}

func TestTopologyHasGrownWhenAllHoldsAndThereIsMore(t *testing.T) {
	one := open()
	one.Ports[0].SubnetPrefix = ""
	none, other := open(), open()
	none.Ports = nil
	other.Ports[0].LinkLayer, other.Ports[0].SubnetPrefix = probe.Ethernet, "00000000000000ff"
	for name, tc := range map[string]struct {
		frozen, now *probe.Health
		want        bool
	}{
		"the same":                    {open(), open(), false},
		"a card has come":             {none, open(), true},
		"one more fact":               {one, open(), true},
		"a card has gone":             {open(), none, false},
		"another value, and one more": {one, other, false},
	} {
		r := newRig(t, nil)
		if err := r.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.health.set(tc.frozen)
		r.FreezeTopology()
		r.health.set(tc.now)
		if got := r.TopologyHasGrown(); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
		if r.ThawTopology(); r.TopologyHasGrown() {
			t.Errorf("%s: grown while nothing is frozen", name)
		}
	}
}

func TestARefusedKeyIsLeftOut(t *testing.T) {
	r := newRig(t, nil)
	if err := r.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	const fabric = "rdma.example.com/rdma-fabric"
	if r.RefuseTopologyKey("rdma.example.com/zone") {
		t.Error("a key that is not injected was taken for one")
	}
	if !r.RefuseTopologyKey(fabric) {
		t.Error("an injected key was not recognised")
	}
	if got := r.FreezeTopology(); len(got) != 2 || got[fabric] != "" {
		t.Errorf("%v", got)
	}
	if got := nodeInfo(t, r); len(got) != 2 || got[fabric] != "" {
		t.Errorf("%v", got)
	}
}

func TestFactsHoldForEverySelectedPort(t *testing.T) {
	ib := func(fabric string) probe.Port { return probe.Port{LinkLayer: probe.InfiniBand, SubnetPrefix: fabric} }
	eth := probe.Port{LinkLayer: probe.Ethernet}
	for name, tc := range map[string]struct {
		ports []probe.Port
		want  map[string]string
	}{
		"no ports":          {nil, nil},
		"one fabric":        {[]probe.Port{ib("a1"), ib("a1")}, map[string]string{"rdma": "true", "rdma-link-layer": "infiniband", "rdma-fabric": "a1"}},
		"two fabrics":       {[]probe.Port{ib("a1"), ib("a2")}, map[string]string{"rdma": "true", "rdma-link-layer": "infiniband"}},
		"the default one":   {[]probe.Port{ib("fe80000000000000")}, map[string]string{"rdma": "true", "rdma-link-layer": "infiniband"}},
		"mixed link layers": {[]probe.Port{ib("a1"), eth}, map[string]string{"rdma": "true"}},
		"ethernet":          {[]probe.Port{eth}, map[string]string{"rdma": "true", "rdma-link-layer": "ethernet"}},
		"unread":            {[]probe.Port{{}}, map[string]string{"rdma": "true"}},
	} {
		if got := facts(tc.ports); !equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
}

func TestReservedPrefixesAreNeverUsed(t *testing.T) {
	for prefix, want := range map[string]bool{
		"kubernetes.io": true, "k8s.io": true, "nfs.csi.k8s.io": true, "topology.kubernetes.io": true,
		"nfs.example.com": false, "k8s.io.example.com": false, "myk8s.io": false,
	} {
		if got := Reserved(prefix); got != want {
			t.Errorf("Reserved(%q) = %v", prefix, got)
		}
	}
	r := newRig(t, nil)
	r.driver.replies[csi.Identity_GetPluginInfo_FullMethodName] = &csi.GetPluginInfoResponse{Name: "nfs.csi.k8s.io"}
	if got := nodeInfo(t, r); len(got) != 0 {
		t.Errorf("driver nfs.csi.k8s.io: %v injected, which kubelet may not set", got)
	}
}

func TestProbeIsLivenessprobes(t *testing.T) {
	r := newRig(t, nil)
	for name, tc := range map[string]struct {
		reply *csi.ProbeResponse
		ready bool
	}{
		"ready":     {&csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, true},
		"unsaid":    {&csi.ProbeResponse{}, true},
		"not ready": {&csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, false},
	} {
		r.driver.replies[csi.Identity_Probe_FullMethodName] = tc.reply
		if err := r.Probe(t.Context()); (err == nil) != tc.ready {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.health.set(closed())
	r.driver.replies[csi.Identity_Probe_FullMethodName] = &csi.ProbeResponse{}
	if err := r.Probe(t.Context()); err != nil {
		t.Errorf("RDMA is down: %v", err)
	}
	r.driver.stop()
	if err := r.Probe(t.Context()); err == nil {
		t.Error("the driver is gone, and nobody says so")
	}
}
