package dirdriver_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/driver/dirdriver"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestTroubleLastsAsLongAsItsFile(t *testing.T) {
	dir := shortDir(t)
	file := filepath.Join(dir, "trouble")
	conn, stop := run(t, dir, dirdriver.Config{TroubleFile: file})
	defer stop()
	node := csi.NewNodeClient(conn)
	for _, step := range []struct {
		trouble     string // none removes the file
		info, stats codes.Code
	}{
		{"NodeGetInfo Internal\n", codes.Internal, codes.NotFound},
		{"NodeGetVolumeStats Aborted\nNodeGetInfo Unavailable\n", codes.Unavailable, codes.Aborted},
		{"NodeGetInfo silence\n", codes.DeadlineExceeded, codes.NotFound},
		{"NodeGetInfo Nonsense\n", codes.Internal, codes.NotFound},
		{"", codes.OK, codes.NotFound},
	} {
		var err error
		if step.trouble == "" {
			err = os.Remove(file)
		} else {
			err = os.WriteFile(file, []byte(step.trouble), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err = node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		cancel()
		if status.Code(err) != step.info {
			t.Errorf("%q: NodeGetInfo: %v, want %s", step.trouble, err, step.info)
		}
		if err := stats(dir)(t.Context(), node); status.Code(err) != step.stats {
			t.Errorf("%q: NodeGetVolumeStats: %v, want %s", step.trouble, err, step.stats)
		}
	}
}
