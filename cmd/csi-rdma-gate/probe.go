package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// Exit statuses of the probe command.
const (
	probeHealthy = iota
	probeUnhealthy
	probeUnknown
	probeBadFlags
	probeTimedOut // --wait was in vain
)

// probeOptions are the flags that only the probe command has.
type probeOptions struct {
	output      string
	watch       bool
	wait        string
	waitTimeout time.Duration
}

func (o *probeOptions) add(fs *flag.FlagSet) {
	fs.StringVar(&o.output, "o", "table", "probe: output `format`, table or json")
	fs.BoolVar(&o.watch, "watch", false, "probe: go on, and print again whenever something changes")
	fs.StringVar(&o.wait, "wait", "", "probe: go on until the node has been healthy, or unhealthy, for --recover-threshold probes in a row, then exit with 0")
	duration(fs, &o.waitTimeout, "wait-timeout", time.Minute, positive, "probe: how long --wait goes on before it exits with 4")
}

func (o *probeOptions) check() error {
	if err := oneOf("o", o.output, "table", "json"); err != nil {
		return err
	}
	if o.wait != "" {
		if err := oneOf("wait", o.wait, "healthy", "unhealthy"); err != nil {
			return err
		}
		if o.watch {
			return errors.New("--watch never ends and --wait does; write one of them")
		}
	}
	return nil
}

// runProbe is "csi-rdma-gate probe": it looks at the hardware and prints what it finds, for people
// or as JSON, one object a line.
func runProbe(ctx context.Context, args []string, stdout io.Writer) (int, error) {
	fs, o := newFlags()
	var po probeOptions
	po.add(fs)
	switch done, err := parse(fs, o, args, stdout); {
	case err != nil:
		return probeBadFlags, err
	case done:
		return probeHealthy, nil
	}
	if err := po.check(); err != nil {
		return probeBadFlags, err
	}
	c, err := o.probeConfig()
	if err != nil {
		return probeBadFlags, err
	}
	p := probe.New(c)
	switch {
	case po.watch:
		return watch(ctx, p, o.probeInterval, po.printer(stdout))
	case po.wait != "":
		ctx, cancel := context.WithTimeout(ctx, po.waitTimeout)
		defer cancel()
		return wait(ctx, p, o.probeInterval, po.wait, o.recoverThreshold, po.printer(stdout))
	default:
		r := p.Probe(ctx, true)
		return statusOf(r), po.printer(stdout)(r)
	}
}

// prober is what probe.Prober does.
type prober interface {
	Probe(ctx context.Context, full bool) *probe.Result
}

// watch prints each change until ctx ends. Every look reads everything: a person is waiting.
func watch(ctx context.Context, p prober, interval time.Duration, show func(*probe.Result) error) (int, error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	status := probeUnknown
	for {
		if r := p.Probe(ctx, true); ctx.Err() == nil {
			status = statusOf(r)
			if err := show(r); err != nil {
				return status, err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return status, nil
		}
	}
}

// wait returns once the verdict has been the wanted one for threshold looks in a row: after a
// command, ports take up to 12 s to settle and flap meanwhile.
func wait(ctx context.Context, p prober, interval time.Duration, wanted string, threshold int, show func(*probe.Result) error) (int, error) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var last *probe.Result
	for inARow := 0; ; {
		if r := p.Probe(ctx, true); ctx.Err() == nil {
			last = r
			inARow++
			if r.Verdict.String() != wanted {
				inARow = 0
			}
			if inARow >= threshold {
				return 0, show(r)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if last != nil {
				if err := show(last); err != nil {
					return probeTimedOut, err
				}
			}
			return probeTimedOut, fmt.Errorf("the node did not become %s in time", wanted)
		}
	}
}

func statusOf(r *probe.Result) int {
	switch r.Verdict {
	case probe.Healthy:
		return probeHealthy
	case probe.Unhealthy:
		return probeUnhealthy
	default:
		return probeUnknown
	}
}

// printer prints a result unless it reads like the one before.
func (o *probeOptions) printer(w io.Writer) func(*probe.Result) error {
	last := ""
	return func(r *probe.Result) error {
		text, err := render(r, o.output, onTerminal(w))
		if err != nil || text == last {
			return err
		}
		if o.output == "table" && last != "" {
			_, _ = fmt.Fprintf(w, "\n%s\n", time.Now().UTC().Format(time.RFC3339))
		}
		last = text
		_, err = io.WriteString(w, text)
		return err
	}
}

func render(r *probe.Result, output string, colour bool) (string, error) {
	if output == "json" {
		data, err := json.Marshal(r)
		return string(data) + "\n", err
	}
	paint := inColour
	if !colour {
		paint = nil
	}
	var b strings.Builder
	err := r.WriteTable(&b, paint)
	return b.String(), err
}

func inColour(v probe.Verdict, text string) string {
	const green, red, yellow = 32, 31, 33
	colour := yellow
	switch v {
	case probe.Healthy:
		colour = green
	case probe.Unhealthy:
		colour = red
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", colour, text)
}

// onTerminal says whether people read w in colour (see no-color.org).
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
