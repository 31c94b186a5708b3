package proxy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// BenchmarkDecision is what the gate adds to a forwarded call: nothing to speak of while it is open;
// while it is closed a look into the mount table, here the kernel's own with as many mounts as
// volumes, unless the gate itself has seen the volume being mounted.
func BenchmarkDecision(b *testing.B) {
	for _, n := range []int{10, 1000, 10000} {
		for name, tc := range map[string]struct {
			h       *probe.Health
			volume  func(n int) string
			refused bool
		}{
			"open":           {open(), func(int) string { return "new" }, false},
			"closed-known":   {closed(), func(int) string { return "known-0" }, false},
			"closed-mounted": {closed(), func(n int) string { return fmt.Sprint("mounted-", n-1) }, false},
			"closed-refused": {closed(), func(int) string { return "new" }, true},
		} {
			b.Run(fmt.Sprintf("%s/volumes=%d", name, n), func(b *testing.B) {
				if err := enterMountNamespace(); err != nil {
					b.Skip(err) // needs root
				}
				dir := b.TempDir()
				vs := newVolumes()
				for i := range n {
					bindMount(b, filepath.Join(dir, fmt.Sprint("mounted-", i)))
					end, err := vs.begin(publishOf(dir, fmt.Sprint("known-", i)))
					if err != nil {
						b.Fatal(err)
					}
					end(nil)
				}
				g := &gate{GateConfig: GateConfig{NodeName: "worker-7"}, volumes: vs, driverName: func() string { return "rdma.example.com" },
					mounted: (&mountPoints{table: threadMounts}).mounted}
				r := publishOf(dir, tc.volume(n))
				for b.Loop() {
					if err := g.decide(r, tc.h); (err != nil) != tc.refused {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func publishOf(dir, volume string) *request {
	return &request{method: csi.Node_NodePublishVolume_FullMethodName, volume: volume, path: filepath.Join(dir, volume)}
}

func bindMount(b *testing.B, dir string) {
	b.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// BenchmarkPublish compares NodePublishVolume at the driver and through the gate, call by call in
// turn, on a connection that is held and with a new one for each call as kubelet makes. The figure
// is the ratio of the medians.
func BenchmarkPublish(b *testing.B) {
	for _, tc := range []struct {
		name string
		call func(address string, held *grpc.ClientConn) error
	}{
		{"held-connection", func(_ string, held *grpc.ClientConn) error { return publishOnce(held) }},
		{"new-connection", func(address string, _ *grpc.ClientConn) error {
			conn, err := dial(address)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			return publishOnce(conn)
		}},
	} {
		b.Run(tc.name, func(b *testing.B) {
			r := newRig(b, nil)
			var (
				addresses = []string{r.driver.address, r.conn.Target()[len("unix:"):]}
				held      [2]*grpc.ClientConn
				took      [2][]time.Duration
			)
			for i, address := range addresses {
				conn, err := dial(address)
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				held[i] = conn
			}
			for b.Loop() {
				for i, address := range addresses {
					begin := time.Now()
					if err := tc.call(address, held[i]); err != nil {
						b.Fatal(err)
					}
					took[i] = append(took[i], time.Since(begin))
				}
			}
			direct, through := median(took[0]), median(took[1])
			b.ReportMetric(float64(direct.Microseconds()), "µs-direct-p50")
			b.ReportMetric(float64(through.Microseconds()), "µs-gate-p50")
			b.ReportMetric(float64(through)/float64(direct), "gate/direct-p50")
			b.ReportMetric(0, "ns/op") // two calls and their bookkeeping: no figure of use
		})
	}
}

func dial(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
}

func publishOnce(conn *grpc.ClientConn) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // as kubelet's
	defer cancel()
	_, err := csi.NewNodeClient(conn).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{
		VolumeId: "pvc-0", TargetPath: "/var/lib/kubelet/pods/0/volumes/kubernetes.io~csi/pvc-0/mount",
		VolumeCapability: &csi.VolumeCapability{}, VolumeContext: map[string]string{"share": "/export/0", "proto": "rdma"},
	})
	return err
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
