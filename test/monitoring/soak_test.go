package monitoring

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// A thousand refusals of a thousand volumes are one series more than none, and a line or two in the log. That nothing is
// remembered of them in memory is a test of package proxy's.
func (b binaries) testSoak(t *testing.T) {
	n := b.startNode(t, "--deregister-policy=never")
	n.pull()
	n.refuse(0)
	seriesBefore, linesBefore := series(n.mustGet("/metrics")), strings.Count(n.log.String(), "\n")

	socket := "unix:" + n.path("kubelet/plugins/"+driverName+"/csi.sock")
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for i := 1; i <= 1000; i++ {
		if err := stage(t.Context(), conn, i, n.path("kubelet")); status.Code(err) != codes.FailedPrecondition {
			t.Fatalf("call %d: %v", i, err)
		}
	}

	n.awaitMetric(`csi_rdma_gate_refusals_total{code="FailedPrecondition",method="NodeStageVolume",reason="PhysLinkDown"} 1001`)
	if after := series(n.mustGet("/metrics")); !slices.Equal(after, seriesBefore) {
		t.Errorf("%d series before, %d after:\n%s", len(seriesBefore), len(after), strings.Join(after, "\n"))
	}
	if more := strings.Count(n.log.String(), "\n") - linesBefore; more > 3 {
		t.Errorf("%d lines more in the log", more)
	}
	if strings.Contains(n.mustGet("/metrics"), "vol-") {
		t.Error("a volume is a label")
	}
}

func stage(ctx context.Context, conn *grpc.ClientConn, i int, kubeletDir string) error {
	_, err := csi.NewNodeClient(conn).NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{
		VolumeId:          fmt.Sprintf("vol-%d", i),
		StagingTargetPath: fmt.Sprintf("%s/plugins/kubernetes.io/csi/%s/%d/globalmount", kubeletDir, driverName, i),
		VolumeCapability:  &csi.VolumeCapability{},
	})
	return err
}

// series are the names and labels of all samples, in the order of /metrics, which sorts them.
func series(metrics string) []string {
	var all []string
	for line := range strings.Lines(metrics) {
		if value := strings.LastIndexByte(line, ' '); !strings.HasPrefix(line, "#") {
			all = append(all, line[:value])
		}
	}
	return all
}
