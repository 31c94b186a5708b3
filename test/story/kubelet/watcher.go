package kubelet

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// reconcileInterval is kubelet's loopSleepDuration.
const reconcileInterval = time.Second

// Watcher is a PluginManager that acts as kubelet's: only the creation and the removal of a socket
// count. A socket that is renamed away stays registered.
type Watcher struct {
	// Log must not be nil.
	Log *slog.Logger
}

// Run implements PluginManager.
func (w Watcher) Run(ctx context.Context, dir string, h PluginHandler) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fsw, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer fsw.Close()

	r := newReconciler(h, w.Log)
	defer r.running.Wait()
	if err := w.traverse(fsw, r, dir); err != nil {
		return err
	}
	tick := time.NewTicker(reconcileInterval)
	defer tick.Stop()
	for {
		r.reconcile(ctx)
		for ticked := false; !ticked; {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
				ticked = true
			case err := <-fsw.Errors:
				w.Log.Warn("plugin watcher", "error", err)
			case ev := <-fsw.Events:
				w.handle(fsw, r, ev)
			}
		}
	}
}

func (w Watcher) handle(fsw *fsnotify.Watcher, r *reconciler, ev fsnotify.Event) {
	switch {
	case ev.Has(fsnotify.Create):
		if err := w.created(fsw, r, ev.Name); err != nil {
			w.Log.Warn("plugin watcher", "error", err)
		}
	case ev.Has(fsnotify.Remove):
		r.undesire(ev.Name)
	}
}

// created wants the plugin behind a new socket, and looks into a new directory.
func (w Watcher) created(fsw *fsnotify.Watcher, r *reconciler, path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(fi.Name(), "."):
	case fi.IsDir():
		return w.traverse(fsw, r, path)
	case fi.Mode().Type() == fs.ModeSocket:
		r.desire(path)
	}
	return nil
}

// traverse watches dir and all below it, and wants the plugins whose sockets are there already.
func (w Watcher) traverse(fsw *fsnotify.Watcher, r *reconciler, dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil && path == dir:
			return err
		case err != nil:
			w.Log.Warn("plugin watcher", "error", err)
		case entry.IsDir():
			if err := fsw.Add(path); err != nil {
				return fmt.Errorf("watch %s: %w", path, err)
			}
		case entry.Type() == fs.ModeSocket && !strings.HasPrefix(entry.Name(), "."):
			r.desire(path)
		}
		return nil
	})
}
