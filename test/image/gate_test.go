package image_test

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/image/bundle"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
)

// gate is a container of an example that was edited.
type gate struct {
	node *simulated
	id   string
	log  *logbook
	died chan error
}

// startGate starts it on a node of its own.
func startGate(t *testing.T, driver, name string, edit func(*bundle.Container)) *gate {
	t.Helper()
	node := newSimulated(t, driver)
	if err := makeVerbsUsable(node.at.Host); err != nil {
		t.Fatal(err)
	}
	g := startGateAt(t, name, node.at, edit)
	g.node = node
	return g
}

func startGateAt(t *testing.T, name string, at story.Places, edit func(*bundle.Container)) *gate {
	t.Helper()
	g := &gate{log: newLogbook(), died: make(chan error, 1)}
	c := example(t, name, at)
	c.HostNetwork = nodeNetwork(t)
	c.Args = []string{"--rdma-probe-interval=200ms"}
	edit(&c)
	path, args, err := runc(t, &c)
	if err != nil {
		t.Fatal(err)
	}
	g.id = c.ID
	process := &child.Program{Name: "gate", Path: path, Args: args, Stdout: g.log, Stderr: g.log, Died: func(err error) { g.died <- err }}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := process.Stop(30 * time.Second); err != nil {
			t.Errorf("%v\n%s", err, g.log)
		}
	})
	return g
}

// logbook keeps what is written to it. It is safe for concurrent use.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
	// more is closed, and replaced, at every write.
	more chan struct{}
}

func newLogbook() *logbook { return &logbook{more: make(chan struct{})} }

func (l *logbook) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.more)
	l.more = make(chan struct{})
	return l.text.Write(b)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// await returns once the text is as wanted, or an error after far more time than that takes.
func (l *logbook) await(ctx context.Context, wanted func(string) bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		l.mu.Lock()
		text, more := l.text.String(), l.more
		l.mu.Unlock()
		if wanted(text) {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("not in time: %w", ctx.Err())
		}
	}
}
