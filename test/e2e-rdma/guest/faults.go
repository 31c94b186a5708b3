package main

import (
	"context"
	"fmt"
	"time"
)

// fault is something that happens to a device while a gate runs.
type fault struct {
	name    string
	prepare func() error // may be nil; the clock starts after it
	inflict func() error
	repair  func() error
	// What the gate has to make of it.
	verdict, reason string
}

// Time limits. What no event announces is read every 30 seconds, and 3 healthy ticks open the gate.
const (
	closeLimit = 40 * time.Second
	openLimit  = 60 * time.Second
)

// emulated is for a gate, and its probe command, that runs some fifty times slower than on a node:
// reading a table of 1024 GIDs, which soft-RoCE has, can take longer than the default of 3s.
const emulated = "--rdma-probe-timeout=20s"

func testFaults(ctx context.Context, r *report, n *node, w *wire) error {
	flags := []string{"--rdma-device=" + w.device, emulated}
	started := time.Now()
	g, err := n.startGate(kubeletDir, flags...)
	if err != nil {
		return err
	}
	if _, _, err := g.await(ctx, started, openLimit, open); err != nil {
		return err
	}
	if err := g.awaitRegistration(); err != nil {
		return err
	}
	r.heading("A gate with its default checks and thresholds. Times are from the change to the gate's answer to NodeStageVolume.")
	r.columns()
	for _, f := range deviceFaults(w) {
		t := &faultTest{report: r, gate: g, wire: w, probeFlags: flags}
		if err := t.run(ctx, f); err != nil {
			r.evidence(w)
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return g.end()
}

// faultTest is one fault's way through a gate.
type faultTest struct {
	report     *report
	gate       *gate
	wire       *wire
	probeFlags []string
}

func (t *faultTest) run(ctx context.Context, f fault) error {
	if f.prepare != nil {
		if err := f.prepare(); err != nil {
			return err
		}
	}
	inflicted := time.Now()
	if err := f.inflict(); err != nil {
		return err
	}
	first, closedAfter, err := t.gate.await(ctx, inflicted, closeLimit, closed)
	if err != nil {
		return err
	}
	if t.report.verbose {
		t.report.evidence(t.wire)
	}
	if err := t.gate.staysClosed(ctx, f.reason); err != nil {
		return err
	}
	v, err := probe(t.probeFlags...)
	if err != nil {
		return err
	}
	if err := v.expect(f.verdict, f.reason); err != nil {
		return err
	}
	repaired := time.Now()
	if err := f.repair(); err != nil {
		return err
	}
	_, openAfter, err := t.gate.await(ctx, repaired, openLimit, open)
	if err != nil {
		return err
	}
	t.report.row(f.name, f.verdict, first.then(f.reason), closedAfter, openAfter)
	return nil
}

// then shows that the first thing seen was but a step on the way to what it came to.
func (r *refusal) then(reason string) string {
	if r.reason == reason {
		return reason
	}
	return r.reason + " > " + reason
}

// staysClosed wants the gate to come to the reason, then one answer to all new volumes, and nothing
// of them at the driver.
func (c *client) staysClosed(ctx context.Context, reason string) error {
	want, _, err := c.await(ctx, time.Now(), closeLimit, func(r *refusal) bool { return closed(r) && r.reason == reason })
	if err != nil {
		return fmt.Errorf("want %s: %w", reason, err)
	}
	before, err := stagedVolumes()
	if err != nil {
		return err
	}
	for range 3 {
		r, err := c.stage(ctx)
		if err != nil {
			return err
		}
		if r == nil || r.message != want.message {
			return fmt.Errorf("the gate first %s, then %s", answer(want), answer(r))
		}
	}
	after, err := stagedVolumes()
	if err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("%d refused volumes reached the driver", after-before)
	}
	return nil
}
