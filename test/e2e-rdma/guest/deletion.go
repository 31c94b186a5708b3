package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	deletions = 20
	// deletionLimit is far more than a deletion takes that waits for nobody.
	deletionLimit = 5 * time.Second
)

// testDeletion deletes the device again and again, at any moment of the probes of a gate that opens
// it as often as it can: a descriptor that stayed open would make the deletion wait for ever.
func testDeletion(ctx context.Context, r *report, n *node, w *wire) error {
	g, err := n.startGate(kubeletDir, "--rdma-device="+w.device, emulated, "--rdma-checks=port,gid,netdev,verbs-open",
		"--rdma-probe-interval=50ms", "--recover-threshold=1")
	if err != nil {
		return err
	}
	var longest time.Duration
	for range deletions {
		if _, _, err := g.await(ctx, time.Now(), openLimit, open); err != nil {
			return err
		}
		held, err := openDescriptors()
		if err != nil {
			return err
		}
		if len(held) > 0 {
			return fmt.Errorf("open: %s", held)
		}
		time.Sleep(rand.N(100 * time.Millisecond))
		took, err := deleteWithin(w, deletionLimit)
		if err != nil {
			return err
		}
		longest = max(longest, took)
		if err := w.addDevice(); err != nil {
			return err
		}
	}
	r.heading("A gate that opens the device whenever it is new")
	r.line("%d deletions, none had to wait for the gate: the longest took %s; no descriptor found open", deletions, milliseconds(longest))
	return g.end()
}

func deleteWithin(w *wire, limit time.Duration) (time.Duration, error) {
	start := time.Now()
	deleted := make(chan error, 1)
	go func() { deleted <- w.deleteDevice() }()
	select {
	case err := <-deleted:
		return time.Since(start), err
	case <-time.After(limit):
		held, err := openDescriptors()
		return limit, errors.Join(fmt.Errorf("deletion of %s did not end within %s; open: %s", w.device, limit, held), err)
	}
}
