package image_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/image/bundle"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story"
)

// A node larger than most, in a bad moment: every port is watched, and as after a restart of kubelet every volume is
// wanted at once, by as many calls at a time as a node has pods, each on a connection of its own.
const (
	manyPorts   = 64
	manyVolumes = 1000
	manyPods    = 250
)

// The limit of the examples is at least twice what the gate comes to need there, and the request is enough for an idle one.
func TestTheMemoryOfTheExampleIsEnough(t *testing.T) {
	dir := sharedDir(t)
	at := story.Places{Kubelet: filepath.Join(dir, "kubelet"), DriverSocket: filepath.Join(dir, "driver"), Host: filepath.Join(dir, "host")}
	setPorts(t, at.Host, true)
	makeVolumes(t, at.Kubelet)
	serveDriver(t, at.DriverSocket)

	g := startGateAt(t, plain, at, func(c *bundle.Container) {
		c.Args = append(c.Args, "--rdma-device=mlx5_*", "--rdma-checks=port,gid,netdev")
	})
	if err := g.log.await(t.Context(), func(text string) bool { return strings.Contains(text, `"Registration socket is in place"`) }); err != nil {
		t.Fatalf("%v\n%s", err, g.log)
	}
	pid, err := pidOf(g.id)
	if err != nil {
		t.Fatal(err)
	}
	idle := resident(t, pid, "VmRSS")
	socket := filepath.Join(at.Kubelet, "plugins", driverName, "csi.sock")
	storm(t, socket, at.Kubelet, "vol", codes.OK)
	setPorts(t, at.Host, false)
	if err := g.log.await(t.Context(), func(text string) bool { return strings.Contains(text, `"Gate closed"`) }); err != nil {
		t.Fatalf("%v\n%s", err, g.log)
	}
	storm(t, socket, at.Kubelet, "new", codes.FailedPrecondition)

	resources := example(t, plain, at).Container.Resources
	peak, limit, request := peakOf(t, g.id), resources.Limits.Memory().Value(), resources.Requests.Memory().Value()
	t.Logf("%d ports, %d volumes: %d KiB resident when idle, %d KiB at most; the control group at most %d KiB of %d KiB",
		manyPorts, manyVolumes, idle>>10, resident(t, pid, "VmHWM")>>10, peak>>10, limit>>10)
	if 2*peak > limit {
		t.Errorf("more than half of the limit")
	}
	if idle > request {
		t.Errorf("the request, %d KiB, is less than an idle gate takes", request>>10)
	}
}

// setPorts makes the hardware, or changes all ports of it.
func setPorts(t *testing.T, host string, up bool) {
	t.Helper()
	state, physState, carrier := "1: DOWN", "3: Disabled", "0"
	if up {
		state, physState, carrier = "4: ACTIVE", "5: LinkUp", "1"
	}
	files := map[string]string{"dev/null": ""}
	for i := range manyPorts {
		device := fmt.Sprintf("sys/class/infiniband/mlx5_%d", i)
		port, netdev := device+"/ports/1", fmt.Sprintf("ens%d", i)
		maps.Copy(files, map[string]string{
			device + "/node_type":                  "1: CA",
			port + "/link_layer":                   "Ethernet",
			port + "/rate":                         "400 Gb/sec (4X NDR)",
			port + "/gids/0":                       fmt.Sprintf("fe80:0000:0000:0000:0a00:27ff:fe00:%04x", i),
			port + "/gid_attrs/types/0":            "RoCE v2",
			port + "/gid_attrs/ndevs/0":            netdev,
			port + "/state":                        state,
			port + "/phys_state":                   physState,
			"sys/class/net/" + netdev + "/carrier": carrier,
			"sys/class/net/" + netdev + "/type":    "1",
		})
	}
	for name, text := range files {
		name = filepath.Join(host, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name+".new", []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(name+".new", name); err != nil {
			t.Fatal(err)
		}
	}
}

func stagingPath(kubelet, id string) string {
	return filepath.Join(kubelet, "plugins/kubernetes.io/csi", driverName, id, "globalmount")
}

func targetPath(kubelet, id string) string {
	return filepath.Join(kubelet, "pods", id, "volumes/kubernetes.io~csi/pv-"+id+"/mount")
}

// makeVolumes leaves a kubelet's directory with a mount and a vol_data.json for each staged and each published volume.
func makeVolumes(t *testing.T, kubelet string) {
	t.Helper()
	for _, d := range []string{filepath.Join("plugins", driverName), "plugins_registry"} {
		if err := os.MkdirAll(filepath.Join(kubelet, d), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	for i := range manyVolumes {
		id := fmt.Sprintf("vol-%d", i)
		for _, path := range []string{stagingPath(kubelet, id), targetPath(kubelet, id)} {
			if err := os.MkdirAll(path, 0o750); err != nil {
				t.Fatal(err)
			}
			data := fmt.Sprintf(`{"driverName":%q,"volumeHandle":%q,"specVolID":"pv-%s","nodeName":%q}`, driverName, id, id, nodeName)
			if err := os.WriteFile(filepath.Join(filepath.Dir(path), "vol_data.json"), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// willing is a driver that does what it is told, without doing anything.
type willing struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
}

func (willing) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: driverName, VendorVersion: "fake"}, nil
}

func (willing) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: nodeName}, nil
}

func (willing) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (willing) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	return &csi.GetPluginCapabilitiesResponse{}, nil
}

func (willing) NodePublishVolume(context.Context, *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	return &csi.NodePublishVolumeResponse{}, nil
}

func serveDriver(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "csi.sock"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csi.RegisterIdentityServer(server, willing{})
	csi.RegisterNodeServer(server, willing{})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
}

// storm publishes volumes and wants the same answer to every call.
func storm(t *testing.T, socket, kubelet, kind string, want codes.Code) {
	t.Helper()
	volumes := make(chan string, manyVolumes)
	for i := range manyVolumes {
		volumes <- fmt.Sprintf("%s-%d", kind, i)
	}
	close(volumes)
	var pods sync.WaitGroup
	failed := make(chan error, manyVolumes)
	for range manyPods {
		pods.Go(func() {
			for id := range volumes {
				if err := publish(t.Context(), socket, id, targetPath(kubelet, id)); status.Code(err) != want {
					failed <- fmt.Errorf("%s: not %s: %w", id, want, err)
				}
			}
		})
	}
	pods.Wait()
	close(failed)
	for err := range failed {
		t.Fatal(err)
	}
}

func publish(ctx context.Context, socket, id, target string) error {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute) // kubelet's
	defer cancel()
	_, err = csi.NewNodeClient(conn).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: id, TargetPath: target,
		VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		},
	})
	return err
}

// resident is a figure of /proc/PID/status, in bytes.
func resident(t *testing.T, pid int, key string) int64 {
	t.Helper()
	status, err := statusOf(pid)
	if err != nil {
		t.Fatal(err)
	}
	kib, err := strconv.ParseInt(strings.TrimSuffix(status[key], " kB"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// peakOf is the most memory that the container's control group has had, what the kernel keeps for it included, in bytes.
func peakOf(t *testing.T, id string) int64 {
	t.Helper()
	var errs error
	for _, file := range []string{"memory/" + id + "/memory.max_usage_in_bytes", id + "/memory.peak"} { // version 1, version 2
		text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", file))
		if err != nil {
			errs = errors.Join(errs, err)
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	t.Fatal(errs)
	return 0
}
