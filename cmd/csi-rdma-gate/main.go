// Command csi-rdma-gate is a sidecar of a CSI node plugin. It stands between kubelet and the driver
// and refuses new mounts while the node's RDMA hardware cannot carry them.
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

	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // for --logging-format=json
	"k8s.io/klog/v2"
)

// version is set by the linker.
var version = "unknown"

// Exit statuses. The probe command has its own, see runProbe.
const (
	exitOK       = 0
	exitBadFlags = 1
)

func main() { os.Exit(command(os.Args[1:])) }

func command(args []string) int {
	if len(args) > 0 && args[0] == "probe" {
		return runProbe(args[1:], os.Stdout)
	}
	fs, o := newFlags()
	switch done, err := parse(fs, o, args); {
	case err != nil:
		return complain(err, exitBadFlags)
	case done, o.mode == "kubelet-registration-probe":
		return exitOK
	}
	if err := oneOf("mode", o.mode, "registration", "kubelet-registration-probe"); err != nil {
		return complain(err, exitBadFlags)
	}
	c, err := o.config()
	if err != nil {
		return complain(err, exitBadFlags)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	defer klog.Flush()
	if err := run(ctx, c, o); err != nil {
		return complain(err, exitBadFlags)
	}
	return exitOK
}

// parse reads the flags, sets up logging, and answers --help and --version.
func parse(fs *flag.FlagSet, o *options, args []string) (done bool, err error) {
	err = fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		usage(fs)
		return true, nil
	case err != nil:
		return false, explain(err)
	case fs.NArg() > 0:
		return false, fmt.Errorf("argument %q is not a flag; write --name=value (see --help)", fs.Arg(0))
	case o.version:
		fmt.Println("csi-rdma-gate", version)
		return true, nil
	}
	if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
		return false, fmt.Errorf("logging flags: %w", err)
	}
	return false, nil
}

func usage(fs *flag.FlagSet) {
	fmt.Println("csi-rdma-gate [probe] [flags]\n\nA sidecar that refuses CSI mounts while the node's RDMA hardware cannot carry them.\nprobe looks once and prints what it finds.\n\nFlags:")
	fs.SetOutput(os.Stdout)
	fs.PrintDefaults()
}

// explain rewords package flag's errors, so that each says what to do.
func explain(err error) error {
	text := err.Error()
	if name, ok := strings.CutPrefix(text, "flag provided but not defined: "); ok {
		return fmt.Errorf("there is no flag -%s; see --help", name)
	}
	return errors.New(strings.Replace(text, " for flag -", " for flag --", 1))
}

func complain(err error, status int) int {
	fmt.Fprintln(os.Stderr, "csi-rdma-gate:", strings.ReplaceAll(err.Error(), "\n", "; "))
	return status
}
