// Command csi-rdma-gate is a sidecar of a CSI node plugin. It stands between kubelet and the driver
// and refuses new mounts while the node's RDMA hardware cannot carry them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // for --logging-format=json
	"k8s.io/klog/v2"
)

// Exit statuses. The probe command has its own, see runProbe.
const (
	exitOK       = 0
	exitBadFlags = 1
)

func main() {
	// It is never undone: a second SIGTERM, as kubelet sends after a restart of its own, must not cut
	// calls off.
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	status, err := command(ctx, os.Args[1:], os.Stdout)
	klog.Flush()
	if err != nil {
		fmt.Fprintln(os.Stderr, "csi-rdma-gate:", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	os.Exit(status)
}

// command returns the exit status, and the error to print on one line.
func command(ctx context.Context, args []string, stdout io.Writer) (int, error) {
	if len(args) > 0 && args[0] == "probe" {
		return runProbe(ctx, args[1:], stdout)
	}
	fs, o := newFlags()
	switch done, err := parse(fs, o, args, stdout); {
	case err != nil:
		return exitBadFlags, err
	case done, o.mode == "kubelet-registration-probe":
		return exitOK, nil
	}
	if err := oneOf("mode", o.mode, "registration", "kubelet-registration-probe"); err != nil {
		return exitBadFlags, err
	}
	c, err := o.config()
	if err != nil {
		return exitBadFlags, err
	}
	if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
		return exitBadFlags, err
	}
	if err := run(ctx, c, o); err != nil {
		return exitBadFlags, err
	}
	return exitOK, nil
}

// parse reads the flags and answers --help and --version.
func parse(fs *flag.FlagSet, o *options, args []string, stdout io.Writer) (done bool, err error) {
	err = fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		usage(fs, stdout)
		return true, nil
	case err != nil:
		return false, explain(err)
	case fs.NArg() > 0:
		return false, fmt.Errorf("argument %q is not a flag; write --name=value (see --help)", fs.Arg(0))
	case o.version:
		_, _ = fmt.Fprintln(stdout, versionText())
		return true, nil
	}
	o.set = map[string]string{}
	fs.Visit(func(f *flag.Flag) { o.set[f.Name] = f.Value.String() })
	for _, name := range slices.Sorted(maps.Keys(o.set)) {
		value := o.set[name]
		if variable := unexpanded.FindString(value); variable != "" {
			return false, fmt.Errorf("--%s=%q: kubelet left %s as it is, since the container has no such variable; add it to env", name, value, variable)
		}
	}
	if errs := logsapi.Validate(o.logging, nil, nil); len(errs) > 0 {
		return false, fmt.Errorf("logging flags: %w", errs.ToAggregate())
	}
	return false, nil
}

// unexpanded is a reference in a container's args that kubelet knew no value for.
var unexpanded = regexp.MustCompile(`\$\([A-Za-z_][\w.-]*\)`)

func usage(fs *flag.FlagSet, w io.Writer) {
	_, _ = fmt.Fprint(w, `csi-rdma-gate [probe] [flags]

A sidecar that refuses CSI mounts while the node's RDMA hardware cannot carry them.
probe looks once, prints what it finds and exits with 0 (healthy), 1 (unhealthy), 2 (unknown) or 3 (bad flags);
it can also --watch, or --wait=healthy and exit with 4 when that was in vain.

Flags:
`)
	fs.SetOutput(w)
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
