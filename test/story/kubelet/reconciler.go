package kubelet

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// reconciler makes the plugins that are registered those that are desired. Per socket path it runs
// one operation at a time and waits after a failed one.
type reconciler struct {
	handler PluginHandler
	log     *slog.Logger
	running sync.WaitGroup

	mu sync.Mutex
	// generation numbers every sighting of a socket, as kubelet's UUIDs do: a socket that was
	// created again is another plugin.
	generation int
	desired    map[string]int
	actual     map[string]plugin
	operations map[string]*operation
}

// plugin is one that was told to the handler, whether or not the handler liked it.
type plugin struct {
	name, endpoint string
	generation     int
}

type operation struct {
	pending bool
	failed  time.Time
	backoff Backoff
	wait    time.Duration
}

func newReconciler(h PluginHandler, log *slog.Logger) *reconciler {
	return &reconciler{
		handler:    h,
		log:        log,
		desired:    make(map[string]int),
		actual:     make(map[string]plugin),
		operations: make(map[string]*operation),
	}
}

func (r *reconciler) desire(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generation++
	r.desired[path] = r.generation
}

func (r *reconciler) undesire(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.desired, path)
}

// reconcile starts what there is to do and returns.
func (r *reconciler) reconcile(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for path, p := range r.actual {
		if r.desired[path] != p.generation {
			r.start(path, func() error { return r.unregister(path, p) })
		}
	}
	for path, generation := range r.desired {
		if r.actual[path].generation != generation {
			r.start(path, func() error { return r.register(ctx, path, generation) })
		}
	}
}

// start runs op unless another one runs on the path or the last one failed too recently. The
// caller holds mu.
func (r *reconciler) start(path string, op func() error) {
	o := r.operations[path]
	if o == nil {
		o = &operation{}
		r.operations[path] = o
	}
	if o.pending || time.Since(o.failed) < o.wait {
		return
	}
	o.pending = true
	r.running.Go(func() {
		err := op()
		r.mu.Lock()
		defer r.mu.Unlock()
		if err == nil {
			delete(r.operations, path)
			return
		}
		o.pending, o.failed, o.wait = false, time.Now(), o.backoff.Next()
		r.log.Error("plugin operation failed", "path", path, "retry", o.wait, "error", err)
	})
}

func (r *reconciler) unregister(path string, p plugin) error {
	r.mu.Lock()
	delete(r.actual, path)
	r.mu.Unlock()
	r.handler.DeRegisterPlugin(p.name, p.endpoint)
	r.log.Info("plugin deregistered", "name", p.name, "path", path)
	return nil
}
