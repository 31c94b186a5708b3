// Command run tells the story of package story on the terminal. Words after the flags are further
// flags for the gate:
//
//	run -gate build/csi-rdma-gate -driver build/driver -- --rdma-require=1
//	run -gate build/csi-rdma-gate -driver build/driver -host-root / -- --rdma-device='mlx5_*'
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story"
)

func main() {
	// Whatever asks us to end, a reader of our output that went away included, finds the node
	// swept. Until we are done it may ask as often as it likes.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	os.Exit(run(ctx))
}

func run(ctx context.Context) int {
	cfg := story.Config{Out: os.Stdout}
	flag.StringVar(&cfg.Gate, "gate", "../../build/csi-rdma-gate", "path of the gate's binary")
	flag.StringVar(&cfg.Driver, "driver", "../../build/driver", "path of the binary of test/driver")
	hostRoot := flag.String("host-root", "", "look at the hardware of the tree here, such as /, instead of simulating it: shows verdict, registration and topology")
	flag.Parse()
	cfg.GateArgs = flag.Args()

	tell := story.Tell
	if *hostRoot != "" {
		tell = func(ctx context.Context, cfg story.Config) error { return story.Look(ctx, cfg, *hostRoot) }
	}
	err := tell(ctx, cfg)
	var left *story.LeftoverError
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil && !errors.As(err, &left):
		_, _ = fmt.Fprintln(os.Stdout, "\nInterrupted. Nothing was left behind.")
		return 0
	default:
		fmt.Fprintln(os.Stderr, "run:", err)
		return 1
	}
}
