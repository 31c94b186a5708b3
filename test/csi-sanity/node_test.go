package csisanity

import (
	"context"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/onsi/ginkgo/v2/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	nodeName     = "worker-7"
	subnetPrefix = "fe80000000000001"
)

// A port is what tells a node whose cable is plugged in from one whose cable is not.
type port struct{ state, physState string }

var (
	healthyPort   = port{state: "4: ACTIVE", physState: "5: LinkUp"}
	unpluggedPort = port{state: "1: DOWN", physState: "2: Polling"}
)

// A node is a simulated one: the directories that kubelet and the pod of a CSI driver have on a real node, and the part
// of /sys that tells of one InfiniBand port.
type node struct {
	hostRoot     string
	kubelet      string
	state        string // the bundled driver's volumes
	driverSocket string // in the pod; nobody but the gate uses it, and csi-sanity for the controller's half
	gateSocket   string
	registry     string
}

func newNode(t *testing.T, p port) *node {
	t.Helper()
	// Not t.TempDir: with the name of a subtest in it the path of a socket grows beyond what a socket may have.
	dir, err := os.MkdirTemp("", "sanity-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unmountBelow(t, dir)
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	n := &node{
		hostRoot:     filepath.Join(dir, "host"),
		kubelet:      filepath.Join(dir, "kubelet"),
		state:        filepath.Join(dir, "state"),
		driverSocket: filepath.Join(dir, "pod/csi.sock"),
		gateSocket:   filepath.Join(dir, "kubelet/plugins/driver/csi.sock"),
		registry:     filepath.Join(dir, "kubelet/plugins_registry"),
	}
	for _, d := range []string{
		filepath.Dir(n.driverSocket), filepath.Dir(n.gateSocket), filepath.Dir(n.staging()), filepath.Dir(n.target()), n.registry,
	} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	n.writeHardware(t, p)
	return n
}

// writeHardware fakes the hardware: the files of a ConnectX adapter with one InfiniBand port that the checks port and
// gid read.
func (n *node) writeHardware(t *testing.T, p port) {
	t.Helper()
	for name, content := range map[string]string{
		"node_type":                 "1: CA",
		"node_guid":                 "9803:9b03:00a1:0c58",
		"device/uevent":             "DRIVER=mlx5_core",
		"ports/1/state":             p.state,
		"ports/1/phys_state":        p.physState,
		"ports/1/link_layer":        "InfiniBand",
		"ports/1/rate":              "100 Gb/sec (4X EDR)",
		"ports/1/lid":               "0x11",
		"ports/1/sm_lid":            "0x1",
		"ports/1/gids/0":            "fe80:0000:0000:0001:9803:9b03:00a1:0c58",
		"ports/1/gid_attrs/types/0": "IB/RoCE v1",
		"ports/1/gids/1":            "0000:0000:0000:0000:0000:0000:0000:0000",
	} {
		path := filepath.Join(n.hostRoot, "sys/class/infiniband/mlx5_0", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The places where kubelet would have its volume staged and published.
func (n *node) staging() string {
	return filepath.Join(n.kubelet, "plugins/kubernetes.io/csi/driver/0123456789abcdef/globalmount")
}

func (n *node) target() string {
	return filepath.Join(n.kubelet, "pods/8f3b1f0e-7d0a-4b5e-9c55-1c0f3f4d2a11/volumes/kubernetes.io~csi/pvc-1")
}

func (n *node) startDriver(t *testing.T, programs string, d driver) {
	t.Helper()
	args := []string{"--endpoint=" + n.driverSocket}
	if d.stateful {
		args = append(args, "--name="+d.name, "--state-dir="+n.state)
	}
	start(t, filepath.Join(programs, d.program), args...)
	eventually(t, "the driver serves "+n.driverSocket, func() bool { return exists(n.driverSocket) })
}

func (n *node) startGate(t *testing.T, programs string, d driver, topology string) {
	t.Helper()
	start(t, filepath.Join(programs, "csi-rdma-gate"),
		"--csi-address="+n.driverSocket,
		"--kubelet-registration-path="+n.gateSocket,
		"--plugin-registration-path="+n.registry,
		"--kubelet-dir="+n.kubelet,
		"--host-root="+n.hostRoot,
		"--node-name="+nodeName,
		"--rdma-device=mlx5_0",
		"--rdma-checks=port,gid",
		"--topology="+topology,
	)
	eventually(t, "the gate serves "+n.gateSocket, func() bool { return exists(n.gateSocket) })
}

// waitForRegistration waits until the gate has seen a healthy port: on an unhealthy node without volumes it would not
// register.
func (n *node) waitForRegistration(t *testing.T, d driver) {
	t.Helper()
	socket := filepath.Join(n.registry, d.name+"-reg.sock")
	eventually(t, "the gate registers at "+socket, func() bool { return exists(socket) })
}

// waitForRefusal waits until the gate has seen the unplugged port. Before that it is closed too, for want of a probe.
func (n *node) waitForRefusal(t *testing.T) {
	t.Helper()
	client := csi.NewNodeClient(n.dial(t))
	eventually(t, "the gate refuses a new mount because of the port", func() bool {
		_, err := client.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{
			VolumeId:   "no-such-volume",
			TargetPath: filepath.Join(n.target(), "target"),
			VolumeCapability: &csi.VolumeCapability{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			},
		})
		return status.Code(err) == codes.FailedPrecondition && strings.Contains(err.Error(), "PhysLinkDown")
	})
}

// segments are those of NodeGetInfo through the gate.
func (n *node) segments(t *testing.T) map[string]string {
	t.Helper()
	info, err := csi.NewNodeClient(n.dial(t)).NodeGetInfo(t.Context(), &csi.NodeGetInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return info.GetAccessibleTopology().GetSegments()
}

func (n *node) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(endpoint(n.gateSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// sanity runs csi-sanity against the node service at socket and returns the outcome of each spec by its name. Specs in
// without are skipped.
func (n *node) sanity(t *testing.T, programs, socket string, without []string) map[string]types.SpecReport {
	t.Helper()
	file := filepath.Join(t.TempDir(), "report.json")
	args := []string{
		"--csi.endpoint=" + endpoint(socket),
		"--csi.controllerendpoint=" + endpoint(n.driverSocket),
		"--csi.stagingdir=" + n.staging(),
		"--csi.mountdir=" + n.target(),
		"--ginkgo.json-report=" + file,
		"--ginkgo.no-color",
	}
	for _, name := range without {
		// No ^: before the spec's name ginkgo puts the suite's.
		args = append(args, "--ginkgo.skip= "+regexp.QuoteMeta(name)+"$")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// It exits with 1 when a spec failed. What went wrong is for the caller to read in the report.
	output, err := exec.CommandContext(ctx, filepath.Join(programs, "csi-sanity"), args...).CombinedOutput()
	report, readErr := readReport(file)
	if readErr != nil {
		t.Fatalf("csi-sanity: %v; its report: %v\n%s", err, readErr, output)
	}

	specs := map[string]types.SpecReport{}
	count := map[types.SpecState]int{}
	for _, spec := range report.SpecReports {
		if spec.LeafNodeType != types.NodeTypeIt {
			continue
		}
		if _, twice := specs[spec.FullText()]; twice {
			t.Fatalf("two specs have the name %q", spec.FullText())
		}
		specs[spec.FullText()] = spec
		count[spec.State]++
	}
	t.Logf("%d passed, %d failed, %d skipped, %d pending in %s", count[types.SpecStatePassed], count[types.SpecStateFailed],
		count[types.SpecStateSkipped], count[types.SpecStatePending], report.RunTime.Round(time.Millisecond))
	return specs
}

func readReport(file string) (types.Report, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return types.Report{}, err
	}
	// One report for each suite, and csi-sanity has one.
	var reports [1]types.Report
	err = json.Unmarshal(content, &reports)
	return reports[0], err
}

func endpoint(socket string) string { return (&url.URL{Scheme: "unix", Path: socket}).String() }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
