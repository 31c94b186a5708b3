// Package node makes a Kubernetes cluster of one node out of real parts, in namespaces of its own on
// this machine: etcd, API server, controller manager, scheduler, containerd, runc and kubelet. It
// takes root and leaves nothing behind. Of a program that is killed the directory and the cgroups stay,
// until the next run with the same directory for temporary files.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/image"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/parts"
)

const (
	// Name is the node's, and its host name.
	Name = "worker-1"
	// Address is the node's; the range is for documentation and nobody's.
	Address = "198.51.100.1"
	gateway = "198.51.100.2"
	// KubeletDir is kubelet's root directory on the node.
	KubeletDir = "/var/lib/kubelet"
)

// Node is a running node.
type Node struct {
	dir        string
	lock       *os.File
	parts      *parts.Parts
	namespaces *namespaces
	daemons    map[string]*daemon
	env        []string

	ctx    context.Context
	cancel context.CancelCauseFunc
}

// Start makes a node that has the images, and waits until it is Ready. Before that it removes what runs
// left that were killed. The goroutine that calls it has to keep its thread for as long as the program
// runs.
func Start(ctx context.Context, p *parts.Parts, images []image.Image) (*Node, error) {
	if err := sweep(); err != nil {
		return nil, err
	}
	dir, lock, err := newRunDir()
	if err != nil {
		return nil, err
	}
	n := &Node{dir: dir, lock: lock, parts: p, daemons: make(map[string]*daemon)}
	n.ctx, n.cancel = context.WithCancelCause(ctx)
	// The machine's programs too: kubelet and containerd call mount and others.
	n.env = []string{
		"PATH=" + strings.Join(append(p.Dirs(), "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"), ":"),
		"HOME=" + dir,
		"KUBECONFIG=" + n.kubeconfig(admin),
	}
	if err := n.start(images); err != nil {
		return nil, errors.Join(err, n.lastWords(), n.Close())
	}
	return n, nil
}

func (n *Node) start(images []image.Image) error {
	if err := makeCgroup(n.dir, n.cgroup()); err != nil {
		return err
	}
	var err error
	if n.namespaces, err = newNamespaces(n.dir); err != nil {
		return err
	}
	if err := n.startContainerd(n.ctx, images); err != nil {
		return err
	}
	if err := n.startControlPlane(n.ctx); err != nil {
		return err
	}
	return n.startKubelet(n.ctx)
}

// lastWords are the ends of the daemons' logs, of a node that does not start.
func (n *Node) lastWords() error {
	var errs []error
	for name := range n.daemons {
		errs = append(errs, fmt.Errorf("the last lines of %s:\n%s", name, n.LogTail(name, 15)))
	}
	return errors.Join(errs...)
}

// Close ends every process of the node and removes what it had.
func (n *Node) Close() error {
	n.cancel(errors.New("the node was closed"))
	for _, d := range n.daemons {
		d.Kill()
	}
	var errs []error
	if n.namespaces != nil {
		errs = append(errs, n.namespaces.Close())
	}
	errs = append(errs, remove(n.dir), n.lock.Close())
	return errors.Join(errs...)
}

// Context ends when the caller's does, with a cause when a daemon has ended by itself.
func (n *Node) Context() context.Context { return n.ctx }

// Path is where a path of the node can be seen from outside, with everything mounted there.
func (n *Node) Path(path string) string { return n.namespaces.Path(path) }

// Kubectl runs kubectl as a cluster administrator and returns what it prints.
func (n *Node) Kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return n.output(ctx, stdin, "kubectl", args...)
}

// Fetch returns what an HTTP server on the node's network says. The host of the URL has to be an
// address.
func (n *Node) Fetch(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DialContext: n.namespaces.Dial, DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return string(body), err
}

// Mounts is the node's mount table.
func (n *Node) Mounts() ([]*mountinfo.Info, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/mountinfo", n.namespaces.init.Process.Pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mountinfo.GetMountsFromReader(f, nil)
}

// Log is the log file of a daemon, for example kubelet.
func (n *Node) Log(daemon string) string { return n.path("logs/" + daemon + ".log") }

// LogTail is the end of a daemon's log.
func (n *Node) LogTail(daemon string, lines int) string {
	b, err := os.ReadFile(n.Log(daemon))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// LogSize is how much a daemon has logged, for LogSince.
func (n *Node) LogSize(daemon string) (int64, error) {
	fi, err := os.Stat(n.Log(daemon))
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// LogSince is what a daemon has logged since its log had that size.
func (n *Node) LogSince(daemon string, size int64) (string, error) {
	b, err := os.ReadFile(n.Log(daemon))
	if err != nil {
		return "", err
	}
	return string(b[min(size, int64(len(b))):]), nil
}

// startDeadline is how long any part of the node may take to come up, on a busy machine.
const startDeadline = 3 * time.Minute

// Eventually calls f until it succeeds, and otherwise says what was awaited.
func (n *Node) Eventually(ctx context.Context, awaited string, f func() error) error {
	return Eventually(ctx, startDeadline, awaited, f)
}

// pollInterval is short beside what Kubernetes takes for anything, and long beside what a look costs.
const pollInterval = 250 * time.Millisecond

// Eventually calls f until it succeeds, ctx ends or the deadline passes; then its error says what was
// awaited and what f said last.
func Eventually(ctx context.Context, deadline time.Duration, awaited string, f func() error) error {
	limited, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(pollInterval):
			continue
		case <-limited.Done():
		}
		if ctx.Err() != nil {
			return fmt.Errorf("while it was awaited that %s: %w (last: %w)", awaited, context.Cause(ctx), err)
		}
		return fmt.Errorf("after %s it is still awaited that %s: %w", deadline, awaited, err)
	}
}

func (n *Node) daemon(name string, args ...string) {
	n.daemons[name] = &daemon{
		name: name, path: n.parts.Path(name), args: args, env: n.env, log: n.Log(name),
		start: n.namespaces.Start,
		died:  func(err error) { n.cancel(err) },
	}
}

func (n *Node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *Node) write(name, content string) error {
	path := n.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o600)
}
