package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	gateprobe "github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// benchRounds is how often each contender is timed.
const benchRounds = 101

// contender is one way to learn the state of a device.
type contender struct {
	name string
	look func(context.Context) error

	took []time.Duration
	err  error // that of the first look that failed: what fails is no measurement
}

// runBench times, one after the other in each round, what the gate does at every tick and what a
// monitoring script does instead.
func runBench(ctx context.Context, r *report) error {
	if err := loadModules(); err != nil {
		return err
	}
	// With its addresses at random a program is translated anew by the emulator each time it runs,
	// and that would be most of what we measure.
	if err := os.WriteFile("/proc/sys/kernel/randomize_va_space", []byte("0"), 0); err != nil {
		return err
	}
	w, err := newWire(0)
	if err != nil {
		return err
	}
	prober := gateprobe.New(gateprobe.Config{Timeout: 20 * time.Second}) // as emulated says
	if err := awaitHealthy(ctx, prober, w.device); err != nil {
		return err
	}
	byProbe := func(name string, full bool) *contender {
		return &contender{name: name, look: func(ctx context.Context) error { return lookWith(ctx, prober, w.device, full) }}
	}
	byTool := func(name, program string, args ...string) *contender {
		return &contender{name: name, look: func(ctx context.Context) error { return lookByTool(ctx, w.device, program, args...) }}
	}
	steady, full := byProbe("steady probe", false), byProbe("full probe", true)
	others := []*contender{
		full,
		byTool("rdma link", "/usr/bin/rdma", "link"), byTool("ibstat", "/usr/sbin/ibstat"), byTool("ibv_devinfo", "/usr/bin/ibv_devinfo"),
	}
	race(ctx, append([]*contender{steady}, others...))
	if err := errors.Join(steady.err, full.err); err != nil {
		return err
	}
	r.benchTable(steady, others)
	return nil
}

// race goes round by round, so that whatever else the host does meets everyone alike. The first
// round is for warming up.
func race(ctx context.Context, contenders []*contender) {
	for round := range benchRounds + 1 {
		for _, c := range contenders {
			if c.err != nil {
				continue
			}
			start := time.Now()
			c.err = c.look(ctx)
			if took := time.Since(start); round > 0 {
				c.took = append(c.took, took)
			}
		}
	}
}

// awaitHealthy also has the prober find what its light probes remember.
func awaitHealthy(ctx context.Context, p *gateprobe.Prober, device string) error {
	for deadline := time.Now().Add(openLimit); ; time.Sleep(pollPause) {
		err := lookWith(ctx, p, device, true)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

func lookWith(ctx context.Context, p *gateprobe.Prober, device string, full bool) error {
	result := p.Probe(ctx, full)
	if result.Verdict != gateprobe.Healthy || len(result.Ports) != 1 || result.Ports[0].Device != device {
		return fmt.Errorf("want one port, of %s, healthy; got %s %s with %d ports: %+v",
			device, result.Verdict, result.Reason, len(result.Ports), result.Ports)
	}
	return nil
}

// lookByTool runs a tool to its end and takes its output, as a script does.
func lookByTool(ctx context.Context, device, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	if !bytes.Contains(out, []byte(device)) {
		return fmt.Errorf("its output does not name %s: %q", device, out)
	}
	return nil
}

// benchTable leaves out what failed, and says so.
func (r *report) benchTable(unit *contender, others []*contender) {
	r.heading(fmt.Sprintf("One look at one soft-RoCE device, %d times each, interleaved. Probes are made in a process that stays,", benchRounds))
	r.line("tools are executed. All of it runs under emulation: only the ratio means anything, the times do not.")
	r.line("%-12s  %10s  %s", "WHAT", "P50", "RATIO TO A STEADY PROBE")
	for _, c := range append([]*contender{unit}, others...) {
		if c.err == nil {
			r.line("%-12s  %7.2f ms  %23.1f", c.name, c.p50().Seconds()*1000, float64(c.p50())/float64(unit.p50()))
		}
	}
	for _, c := range others {
		if c.err != nil {
			r.line("%s is not measured, since it fails: %v", c.name, c.err)
		}
	}
}

func (c *contender) p50() time.Duration { return percentile(slices.Sorted(slices.Values(c.took)), 50) }
