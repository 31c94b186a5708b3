package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

const (
	// lanes are wires with a gate each, that run at the same time to save it.
	lanes = 5
	// tick is the gates' probe interval: long enough to tell an event from a tick.
	tick = 10 * time.Second
	// doubt is how much earlier than we think the next tick may be.
	doubt = 500 * time.Millisecond
	// enough is how many of 100 link-downs have to close the gate before the next tick.
	enough = 95
)

// testEvents makes link-downs between the ticks of gates that tick seldom.
func testEvents(ctx context.Context, r *report, n *node, total int) error {
	rounds := (total + lanes - 1) / lanes
	r.heading(fmt.Sprintf("%d link-downs between two ticks, %s apart", rounds*lanes, tick))
	var mu sync.Mutex
	var took []time.Duration
	var inTime int
	var running sync.WaitGroup
	failures := make(chan error, lanes)
	for number := 1; number <= lanes; number++ {
		running.Go(func() {
			failures <- lane(ctx, n, number, rounds, func(d time.Duration, beforeTick bool) {
				mu.Lock()
				defer mu.Unlock()
				took = append(took, d)
				if beforeTick {
					inTime++
				}
			})
		})
	}
	running.Wait()
	close(failures)
	var err error
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	if err != nil {
		return err
	}
	slices.Sort(took)
	r.line("closed before the next tick: %d of %d; time to the closed gate: p50 %s, p95 %s, max %s", inTime, len(took),
		milliseconds(percentile(took, 50)), milliseconds(percentile(took, 95)), milliseconds(took[len(took)-1]))
	if inTime*100 < enough*len(took) {
		return fmt.Errorf("the gate follows its ticks, not the events: want %d of 100 closed before the next tick", enough)
	}
	return nil
}

// percentile is the least of the sorted values that p of 100 do not exceed.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)*p+99)/100-1]
}

// lane runs one gate through its rounds. Only ticks open a gate, so whoever sees it open knows when
// the next one is due.
func lane(ctx context.Context, n *node, number, rounds int, closedIn func(took time.Duration, beforeTick bool)) error {
	w, err := newWire(number)
	if err != nil {
		return err
	}
	g, err := n.startGate(fmt.Sprintf("%s/lane/%d", kubeletDir, number), "--rdma-device="+w.device, emulated,
		"--rdma-probe-interval="+tick.String(), "--recover-threshold=1")
	if err != nil {
		return err
	}
	for range rounds {
		if _, _, err := g.await(ctx, time.Now(), openLimit, open); err != nil {
			return err
		}
		next := time.Now().Add(tick - doubt)
		time.Sleep(time.Second + rand.N(tick/4))
		start := time.Now()
		if err := setDown(w.near); err != nil {
			return err
		}
		_, took, err := g.await(ctx, start, 2*tick, closed)
		if err != nil {
			return err
		}
		closedIn(took, start.Add(took).Before(next))
		if err := setUp(w.near); err != nil {
			return err
		}
		time.Sleep(time.Until(next)) // no use in asking before
	}
	return g.end()
}
