package probe

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeKubelet answers instead of a socket. A file stands for the socket's inode.
type fakeKubelet struct {
	path string

	mu         sync.Mutex
	advertised []string
	err        error
	hangs      bool
	asked      int
}

func (k *fakeKubelet) ask(ctx context.Context, _ string) ([]string, error) {
	k.mu.Lock()
	k.asked++
	hangs, advertised, err := k.hangs, k.advertised, k.err
	k.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return advertised, err
}

func (k *fakeKubelet) times() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

func (k *fakeKubelet) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

// start makes the socket anew.
func (k *fakeKubelet) start(t *testing.T, made time.Time) {
	t.Helper()
	os.Remove(k.path)
	if err := os.WriteFile(k.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(k.path, made, made); err != nil {
		t.Fatal(err)
	}
}

// asking runs f with a Prober that wants rdma/hca and rdma/b of a kubelet that started at some time
// before.
func asking(t *testing.T, up time.Duration, f func(t *testing.T, tr *tree, p *Prober, k *fakeKubelet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		k := &fakeKubelet{path: filepath.Join(t.TempDir(), "kubelet.sock"), advertised: []string{"rdma/b", "rdma/hca"}}
		k.start(t, time.Now().Add(-up))
		tr := newTree(t, roce)
		p := newProber(Config{Selectors: selectors(t, "mlx5_0"), Resources: []string{"rdma/hca", "rdma/b"}, PodResourcesSocket: k.path}, tr)
		p.kubelet.ask = k.ask
		f(t, tr, p, k)
	})
}

// watched has kubelet asked in the background until the test ends.
func watched(t *testing.T, p *Prober) {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { p.Watch(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
}

// pass lets time pass, and whatever falls due at its end happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantTroubles(t *testing.T, r *Result, want ...string) {
	t.Helper()
	if got := joinTroubles(r.NodeTroubles); got != strings.Join(want, "; ") {
		t.Errorf("got  %s\nwant %s", got, strings.Join(want, "; "))
	}
}

const (
	lookAtThePlugin = "kubelet does not advertise it: look at the device plugin's DaemonSet, its taints and tolerations)"
	tooYoung        = "not advertised, but kubelet's socket is less than 1m0s old, and after a start of kubelet device plugins have to register again)"
)

func TestAdvertisedResources(t *testing.T) {
	asking(t, time.Hour, func(t *testing.T, tr *tree, p *Prober, k *fakeKubelet) {
		watched(t, p)
		want(t, p.Probe(t.Context(), true), "healthy, mlx5_0/1 healthy")
		k.set(func() { k.advertised = []string{"rdma/b", "rdma/hca_shared"} })
		pass(askEvery)
		r := p.Probe(t.Context(), false)
		want(t, r, "unhealthy ResourceNotAdvertised, mlx5_0/1 healthy")
		wantTroubles(t, r, "rdma/hca ResourceNotAdvertised (the RDMA hardware is fine, but "+lookAtThePlugin)
		// Once the hardware is not fine the message does not say so.
		tr.set(state0, "1: DOWN")
		r = p.Probe(t.Context(), false)
		want(t, r, "unhealthy PortNotActive, mlx5_0/1 unhealthy PortNotActive")
		wantTroubles(t, r, "rdma/hca ResourceNotAdvertised ("+lookAtThePlugin)
		k.set(func() { k.advertised = nil })
		pass(askEvery)
		wantTroubles(t, p.Probe(t.Context(), false), "rdma/hca ResourceNotAdvertised ("+lookAtThePlugin, "rdma/b ResourceNotAdvertised ("+lookAtThePlugin)
	})
}

func TestKubeletThatHasJustStarted(t *testing.T) {
	asking(t, 48*time.Second, func(t *testing.T, _ *tree, p *Prober, k *fakeKubelet) {
		k.advertised = []string{"rdma/b"}
		watched(t, p)
		r := p.Probe(t.Context(), true)
		want(t, r, "unknown AttributeUnreadable, mlx5_0/1 healthy")
		wantTroubles(t, r, "rdma/hca AttributeUnreadable ("+tooYoung)
		pass(askEvery)
		want(t, p.Probe(t.Context(), false), "unknown AttributeUnreadable, mlx5_0/1 healthy")
		pass(askEvery)
		want(t, p.Probe(t.Context(), false), "unhealthy ResourceNotAdvertised, mlx5_0/1 healthy")

		// It starts again, and chmods its socket meanwhile.
		pass(askEvery - time.Second)
		k.start(t, time.Now())
		for i := range 7 {
			pass(askEvery)
			wanted := "unknown AttributeUnreadable, mlx5_0/1 healthy"
			if i == 6 {
				wanted = "unhealthy ResourceNotAdvertised, mlx5_0/1 healthy"
			}
			want(t, p.Probe(t.Context(), false), wanted)
			if err := os.Chmod(k.path, os.FileMode(0o600+i)); err != nil {
				t.Fatal(err)
			}
		}
		k.set(func() { k.advertised = []string{"rdma/b", "rdma/hca"} })
		k.start(t, time.Now())
		pass(askEvery)
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy")
	})
}

// A clock that jumps makes no socket older or younger than it can be.
func TestSocketFromAnotherTime(t *testing.T) {
	for name, made := range map[string]time.Duration{"the future": time.Hour, "long ago": -2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			asking(t, time.Hour, func(t *testing.T, _ *tree, p *Prober, k *fakeKubelet) {
				k.advertised = nil
				watched(t, p)
				want(t, p.Probe(t.Context(), true), "unhealthy ResourceNotAdvertised, mlx5_0/1 healthy")
				k.start(t, time.Now().Add(made))
				pass(5 * askEvery)
				want(t, p.Probe(t.Context(), false), "unknown AttributeUnreadable, mlx5_0/1 healthy")
				pass(2 * askEvery)
				want(t, p.Probe(t.Context(), false), "unhealthy ResourceNotAdvertised, mlx5_0/1 healthy")
			})
		})
	}
}

func TestKubeletThatCannotBeAsked(t *testing.T) {
	asking(t, time.Hour, func(t *testing.T, _ *tree, p *Prober, k *fakeKubelet) {
		k.err = errors.New("connect: connection refused")
		watched(t, p)
		r := p.Probe(t.Context(), true)
		want(t, r, "unknown AttributeUnreadable, mlx5_0/1 healthy")
		wantTroubles(t, r, k.path+" AttributeUnreadable (kubelet does not tell its resources: connect: connection refused)")
		k.set(func() { k.err = nil })
		pass(askEvery)
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy")
		// Gone between the answer and the look at it: whose answer was it?
		os.Remove(k.path)
		pass(askEvery)
		wantTroubles(t, p.Probe(t.Context(), false), k.path+" AttributeUnreadable (kubelet does not tell its resources: no such file or directory)")
	})
}

func TestKubeletThatHangsHoldsUpTheFirstProbeOnly(t *testing.T) {
	asking(t, time.Hour, func(t *testing.T, _ *tree, p *Prober, k *fakeKubelet) {
		k.hangs = true
		watched(t, p)
		began := time.Now()
		r := p.Probe(t.Context(), true)
		want(t, r, "unknown AttributeUnreadable, mlx5_0/1 healthy")
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("the first probe took %v", took)
		}
		began = time.Now()
		for range 100 {
			want(t, p.Probe(t.Context(), false), "unknown AttributeUnreadable, mlx5_0/1 healthy")
			pass(time.Second)
		}
		if took := time.Since(began); took != 100*time.Second {
			t.Errorf("a hundred probes took %v", took)
		}
		if got := k.times(); got != 11 {
			t.Errorf("asked %d times", got)
		}
		k.set(func() { k.hangs = false })
		pass(askEvery)
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy")
	})
}

func TestKubeletIsAskedEveryTenSeconds(t *testing.T) {
	asking(t, time.Hour, func(t *testing.T, tr *tree, p *Prober, k *fakeKubelet) {
		watched(t, p)
		p.Probe(t.Context(), true)
		tr.reset()
		for range 60 {
			pass(time.Second)
			p.Probe(t.Context(), false)
			p.Probe(t.Context(), true)
		}
		if got := k.times(); got != 7 {
			t.Errorf("asked %d times in a minute", got)
		}
	})
}

// Without Watch, as in the probe command, a probe asks by itself.
func TestProbeAsksByItself(t *testing.T) {
	asking(t, time.Hour, func(t *testing.T, _ *tree, p *Prober, k *fakeKubelet) {
		want(t, p.Probe(t.Context(), true), "healthy, mlx5_0/1 healthy")
		want(t, p.Probe(t.Context(), true), "healthy, mlx5_0/1 healthy")
		if got := k.times(); got != 1 {
			t.Errorf("asked %d times", got)
		}
		k.set(func() { k.advertised = nil })
		pass(askEvery)
		want(t, p.Probe(t.Context(), true), "unhealthy ResourceNotAdvertised, mlx5_0/1 healthy")
	})
	asking(t, time.Hour, func(t *testing.T, _ *tree, p *Prober, k *fakeKubelet) {
		k.hangs = true
		began := time.Now()
		wantTroubles(t, p.Probe(t.Context(), true), k.path+" AttributeUnreadable (kubelet does not tell its resources: no answer within 3s)")
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A stat that hangs leaves one goroutine, and an answer that gets old.
func TestAnswerThatGetsOld(t *testing.T) {
	asking(t, time.Hour, func(t *testing.T, _ *tree, p *Prober, k *fakeKubelet) {
		stuck := make(chan struct{})
		p.kubelet.ask = func(ctx context.Context, s string) ([]string, error) {
			if k.times() > 0 {
				<-stuck
			}
			return k.ask(ctx, s)
		}
		watched(t, p)
		want(t, p.Probe(t.Context(), true), "healthy, mlx5_0/1 healthy")
		pass(3 * askEvery)
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy")
		pass(time.Second)
		wantTroubles(t, p.Probe(t.Context(), false), k.path+" AttributeUnreadable (kubelet does not tell its resources: no answer for more than 30s)")
		close(stuck)
		synctest.Wait()
		want(t, p.Probe(t.Context(), false), "healthy, mlx5_0/1 healthy")
	})
}

// The message follows the hardware, and is the same word for word otherwise.
func TestMessageOfAResource(t *testing.T) {
	fine := Trouble{"rdma/hca", ResourceNotAdvertised, "fine"}
	other := Trouble{"rdma/hca", ResourceNotAdvertised, "not fine"}
	var c causes
	for _, trouble := range []Trouble{fine, fine, other, fine} {
		if got := c.steady([]Trouble{trouble}); got[0] != trouble {
			t.Errorf("%v, want %v", got[0], trouble)
		}
	}
}

func TestHardwareThatIsAbsentIsNotFine(t *testing.T) {
	asking(t, time.Hour, func(t *testing.T, _ *tree, p *Prober, k *fakeKubelet) {
		k.advertised = nil
		empty := newProber(Config{AbsentOpen: true, Resources: []string{"rdma/hca"}, PodResourcesSocket: k.path}, newTree(t, "-- sys/class/infiniband/ --\n"))
		empty.kubelet.ask = k.ask
		wantTroubles(t, empty.Probe(t.Context(), true), "rdma/hca ResourceNotAdvertised ("+lookAtThePlugin)
	})
}
