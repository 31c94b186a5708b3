package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The modes of the RDMA subsystem. The kernel changes the mode only while there is no other network
// namespace, so no gate in a pod's namespace can see it change.
const (
	shared    = "shared"
	exclusive = "exclusive"
)

// podCase is a gate in a pod without hostNetwork, deployed so that it cannot know.
type podCase struct {
	name   string
	mode   string
	ownSys bool // not the host's
	checks string

	verdict, reason string
}

func podCases() []podCase {
	const usual, opening = "port,gid,netdev,verbs", "port,gid,netdev,verbs-open"
	return []podCase{
		{"pod's namespace, its own /sys", shared, true, usual, "unknown", "NamespaceMismatch"},
		{"exclusive mode, host's /sys, verbs-open", exclusive, false, opening, "unknown", "VerbsNotPermitted"},
		{"exclusive mode, its own /sys", exclusive, true, usual, "unhealthy", "NoDevices"},
	}
}

func testNamespaces(ctx context.Context, r *report, n *node, w *wire) error {
	r.heading("A gate in a pod's network namespace. It is repaired by starting it in shared mode with the host's /sys.")
	r.columns()
	for _, c := range podCases() {
		if err := c.run(ctx, r, n, w); err != nil {
			r.evidence(w)
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return testExclusiveHost(r, w)
}

func (c podCase) run(ctx context.Context, r *report, n *node, w *wire) error {
	if err := setMode(c.mode); err != nil {
		return err
	}
	flags := []string{"--rdma-device=" + w.device, "--rdma-checks=" + c.checks, emulated}
	wrong, err := newPod()
	if err != nil {
		return err
	}
	wrongFlags := flags
	if c.ownSys {
		wrongFlags = append(wrongFlags, "--host-root="+podRoot)
	}
	closedAfter, err := wrong.gate(n, wrongFlags, func(g *gate) (time.Duration, error) {
		started := time.Now()
		_, took, err := g.await(ctx, started, closeLimit, closed)
		if err != nil {
			return 0, err
		}
		if err := g.staysClosed(ctx, c.reason); err != nil {
			return 0, err
		}
		var v verdict
		err = wrong.do(func() (err error) {
			v, err = probe(wrongFlags...)
			return err
		})
		if err != nil {
			return 0, err
		}
		return took, v.expect(c.verdict, c.reason)
	})
	if err := errors.Join(err, wrong.close(), setMode(shared)); err != nil {
		return err
	}
	right, err := newPod()
	if err != nil {
		return err
	}
	openAfter, err := right.gate(n, flags, func(g *gate) (time.Duration, error) {
		_, took, err := g.await(ctx, time.Now(), openLimit, open)
		return took, err
	})
	if err := errors.Join(err, right.close()); err != nil {
		return err
	}
	r.row(c.name, c.verdict, c.reason, closedAfter, openAfter)
	return nil
}

// testExclusiveHost makes sure that exclusive mode is no fault where the device belongs.
func testExclusiveHost(r *report, w *wire) error {
	if err := setMode(exclusive); err != nil {
		return err
	}
	v, err := probe("--rdma-device="+w.device, "--rdma-checks=port,gid,netdev,verbs-open", emulated)
	if err == nil {
		err = v.expect("healthy", "")
	}
	if err := errors.Join(err, setMode(shared)); err != nil {
		return err
	}
	r.line("In exclusive mode the device stays healthy in the host's own network namespace.")
	return nil
}

// setMode waits for the end of namespaces that nobody is left in.
func setMode(mode string) error {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := netlink.RdmaSystemSetNetnsMode(mode)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(deadline):
			return fmt.Errorf("rdma system set netns %s: %w", mode, err)
		}
	}
}

// pod is a network namespace and the /sys that belongs to it.
type pod struct{ *namespace }

const podRoot = "/pod"

func newPod() (*pod, error) {
	ns, err := newNamespace()
	if err != nil {
		return nil, err
	}
	return &pod{ns}, ns.mountSys(podRoot)
}

func (p *pod) close() error { return errors.Join(unmountSys(podRoot), p.Close()) }

// gate runs a gate in the pod for as long as use takes.
func (p *pod) gate(n *node, flags []string, use func(*gate) (time.Duration, error)) (time.Duration, error) {
	var g *gate
	err := p.do(func() (err error) {
		g, err = n.startGate(kubeletDir+"/pod", flags...)
		return err
	})
	if err != nil {
		return 0, err
	}
	took, err := use(g)
	return took, errors.Join(err, g.end())
}
