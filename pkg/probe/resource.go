package probe

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/podresources"
)

const (
	// askEvery is how often kubelet is asked.
	askEvery = 10 * time.Second
	// settling is how long after its start kubelet may not have heard from every device plugin:
	// they notice the start, each in its own time, and register again.
	settling = time.Minute
)

// resourceCheck wants kubelet to advertise extended resources. While watch runs a probe takes the
// last answer from memory and waits for none but the first.
type resourceCheck struct {
	resources []string
	socket    string
	timeout   time.Duration
	ask       func(ctx context.Context, socket string) ([]string, error)

	call     call[struct{}] // of probes while watch does not run
	watched  atomic.Bool
	answered chan struct{} // closed by the first answer
	last     atomic.Pointer[kubeletAnswer]

	mu       sync.Mutex // guards what follows
	file     fs.FileInfo
	born     time.Time // of the socket
	lookedAt time.Time
}

// kubeletAnswer is immutable.
type kubeletAnswer struct {
	resources []string // sorted
	err       error
	settling  bool
	at        time.Time
}

func newResourceCheck(c Config) *resourceCheck {
	return &resourceCheck{
		resources: c.Resources,
		socket:    c.PodResourcesSocket,
		timeout:   c.Timeout,
		ask:       podresources.Advertised,
		answered:  make(chan struct{}),
	}
}

// watch asks until ctx ends.
func (r *resourceCheck) watch(ctx context.Context) {
	r.watched.Store(true)
	defer r.watched.Store(false)
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		r.look(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (r *resourceCheck) troubles(ctx context.Context, _ bool) []Trouble {
	if r.watched.Load() {
		select {
		case <-r.answered:
		case <-ctx.Done():
		}
	} else if a := r.last.Load(); a == nil || time.Since(a.at) >= askEvery {
		r.call.do(ctx, func() struct{} { r.look(ctx); return struct{}{} })
	}
	return r.judge(r.last.Load())
}

// look asks kubelet and keeps the answer.
func (r *resourceCheck) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	names, err := r.ask(ctx, r.socket)
	// Afterwards: had kubelet been replaced in between, its answer would count for less, not more.
	file, statErr := os.Stat(r.socket)
	if err == nil {
		err = statErr
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	r.socketSeen(file, now)
	first := r.last.Swap(&kubeletAnswer{resources: names, err: err, settling: now.Sub(r.born) < settling, at: now}) == nil
	if first {
		close(r.answered)
	}
}

// socketSeen finds out when the socket was made. Its inode will not do, which is soon used again,
// nor its ctime, which a chmod changes; nothing changes the mtime of a socket. As clocks jump, the
// mtime is asked but once, and a socket that is new since the last look is no older than that look.
func (r *resourceCheck) socketSeen(file fs.FileInfo, now time.Time) {
	same := file != nil && r.file != nil && os.SameFile(file, r.file) && file.ModTime().Equal(r.file.ModTime())
	if file != nil && !same {
		age := max(now.Sub(file.ModTime()), 0)
		if !r.lookedAt.IsZero() {
			age = min(age, now.Sub(r.lookedAt))
		}
		r.born = now.Add(-age)
	}
	r.file, r.lookedAt = file, now
}

// judge takes kubelet's silence for what it is: it says nothing about the hardware.
func (r *resourceCheck) judge(a *kubeletAnswer) []Trouble {
	unasked := func(why string) []Trouble {
		return []Trouble{{r.socket, AttributeUnreadable, "kubelet does not tell its resources: " + why}}
	}
	switch {
	case a == nil, errors.Is(a.err, context.DeadlineExceeded):
		return unasked("no answer within " + r.timeout.String())
	case a.err != nil:
		return unasked(errText(a.err))
	case time.Since(a.at) > 3*askEvery:
		return unasked("no answer for more than " + (3 * askEvery).String())
	}
	var troubles []Trouble
	for _, name := range r.resources {
		if _, advertised := slices.BinarySearch(a.resources, name); advertised {
			continue
		}
		t := Trouble{name, ResourceNotAdvertised, notAdvertised}
		if a.settling {
			t.Reason, t.Detail = AttributeUnreadable, "not advertised, but kubelet's socket is less than "+
				settling.String()+" old, and after a start of kubelet device plugins have to register again"
		}
		troubles = append(troubles, t)
	}
	return troubles
}

const notAdvertised = "kubelet does not advertise it: look at the device plugin's DaemonSet, its taints and tolerations"

// exonerate says of resources that are not advertised that the hardware is not to blame.
func exonerate(checked []Trouble) {
	for i := range checked {
		if t := &checked[i]; t.Reason == ResourceNotAdvertised {
			t.Detail = "the RDMA hardware is fine, but " + t.Detail
		}
	}
}
