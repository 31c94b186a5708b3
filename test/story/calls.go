package story

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// calls counts the calls that reached the driver, from what the driver writes to stdout. It is
// safe for concurrent use.
type calls struct {
	mu   sync.Mutex
	part []byte
	seen counts
	// more is closed, and replaced, at every call.
	more chan struct{}
}

// counts are numbers of calls by method.
type counts map[string]int

func (c counts) of(method string) int { return c[method] }

func newCalls() *calls { return &calls{seen: counts{}, more: make(chan struct{})} }

func (c *calls) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.part = append(c.part, b...)
	for {
		line, rest, ok := bytes.Cut(c.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		method, _, _ := strings.Cut(string(line), " ")
		c.seen[method]++
		c.part = rest
		close(c.more)
		c.more = make(chan struct{})
	}
}

func (c *calls) snapshot() (counts, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.seen), c.more
}

// barrier is a method that nobody else calls on this driver.
const barrier = "ControllerGetCapabilities"

// driverCalls counts all calls that were answered before. The driver's lines reach us later than
// its answers, but in order: so it makes a call of its own, past the gate, and waits for its line.
func (s *Stage) driverCalls(ctx context.Context) (counts, error) {
	before, _ := s.calls.snapshot()
	conn, err := grpc.NewClient("unix:"+s.path("driver/csi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	err = kubelet.Retry(ctx, func(ctx context.Context) error {
		_, err := csi.NewControllerClient(conn).ControllerGetCapabilities(ctx, &csi.ControllerGetCapabilitiesRequest{})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("driver: %w", err)
	}
	for {
		now, more := s.calls.snapshot()
		if now.of(barrier) > before.of(barrier) {
			return now, nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// sayCalls prints the driver's counters of the calls that mount and unmount.
func (s *Stage) sayCalls(ctx context.Context) error {
	c, err := s.driverCalls(ctx)
	if err != nil {
		return err
	}
	var parts []string
	for _, m := range []string{"NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"} {
		parts = append(parts, fmt.Sprintf("%s %d", m, c.of(m)))
	}
	s.say.line("driver", "calls so far: %s", strings.Join(parts, ", "))
	return nil
}
