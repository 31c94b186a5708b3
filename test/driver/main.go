// Command driver is a fake CSI driver for tests and demonstrations. Its volumes are directories of
// the local disk, staged and published by bind mounts where mounting is permitted and as plain
// directories elsewhere. It knows nothing of RDMA and refuses nothing because of it, so whatever is
// refused in front of it was refused by somebody else.
//
// It writes one line per call to stdout, such as "NodeStageVolume vol-1 ok", by which a test sees
// which calls arrived. It keeps no state but its directories and the kernel's mounts: it can be
// killed at any moment and started again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/driver/dirdriver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "driver:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("driver", flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "path of the Unix socket to serve on")
	cfg := dirdriver.Config{Topology: map[string]string{}, Calls: os.Stdout}
	flags.StringVar(&cfg.Name, "name", "nfs.example.com", "name of the driver")
	flags.StringVar(&cfg.NodeID, "node-id", "node-1", "id of this node")
	flags.StringVar(&cfg.StateDir, "state-dir", "", "directory for the volumes; made when absent")
	flags.BoolVar(&cfg.NoStage, "no-stage", false, "publish without staging: do not report STAGE_UNSTAGE_VOLUME")
	flags.StringVar(&cfg.TroubleFile, "trouble-file", "", "while this `file` exists, calls fail as its lines say: METHOD and a gRPC code, or METHOD silence")
	flags.Func("topology", "segment `key=value` to report (repeatable); default none", func(s string) error {
		k, v, ok := strings.Cut(s, "=")
		if !ok || k == "" {
			return errors.New("want key=value")
		}
		cfg.Topology[k] = v
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *endpoint == "" || cfg.StateDir == "" {
		return errors.New("--endpoint and --state-dir are required")
	}

	d, err := dirdriver.New(cfg)
	if err != nil {
		return err
	}
	l, err := dirdriver.Listen(*endpoint)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "driver: %s serves %s; volumes are %s\n", cfg.Name, *endpoint, d.Kind())
	return d.Serve(ctx, l)
}
