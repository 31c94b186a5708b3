package story

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/kubelet"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
)

// The story's own thresholds and jitters: a node is given up after 30 seconds by default, which is
// too long to watch.
const (
	probeInterval = 200 * time.Millisecond

	shutdownTimeout = 5 * time.Second
	// stopGrace is how long a child may take to end.
	stopGrace = shutdownTimeout + 2*time.Second
)

// logLines is how much of the children's logs is shown when the story fails.
const logLines = 30

// maxTempDir leaves room for the longest socket path below it within the 107 bytes of Linux.
const maxTempDir = 20

// Stage is everything that the story moves: the node, kubelet and the two child processes.
type Stage struct {
	Gate, Driver *child.Program
	Kubelet      *kubelet.Kubelet

	// ctx ends when the caller's does or when a child dies.
	caller context.Context
	ctx    context.Context
	cancel context.CancelCauseFunc
	cfg    Config
	dir    string
	node   *rdmanode.Node
	// hostRoot is that of the machine, in place of node, when Look looks.
	hostRoot string
	say      *narrator
	calls    *calls
	logs     map[string]*child.Tail
	// running are our own goroutines.
	running sync.WaitGroup
}

// newStage makes the directory and what is in it; it starts nothing.
func newStage(ctx context.Context, cfg Config) (*Stage, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	gate, err := filepath.Abs(cfg.Gate)
	if err != nil {
		return nil, err
	}
	driver, err := filepath.Abs(cfg.Driver)
	if err != nil {
		return nil, err
	}
	dir, err := makeTempDir(cfg.TempDir)
	if err != nil {
		return nil, err
	}
	s := &Stage{
		caller: ctx,
		cfg:    cfg,
		dir:    dir,
		say:    &narrator{out: cfg.Out, start: time.Now()},
		calls:  newCalls(),
		logs:   make(map[string]*child.Tail),
	}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.Gate = s.program("gate", gate)
	s.Driver = s.program("driver", driver)
	s.Driver.Stdout = s.calls
	s.Driver.Args = []string{
		"--endpoint=" + s.path("driver/csi.sock"),
		"--state-dir=" + s.path("driver/state"),
		"--name=" + driverName,
		"--node-id=" + nodeName,
	}
	s.Kubelet = kubelet.New(kubelet.Config{
		Dir:      s.path("kubelet"),
		NodeName: nodeName,
		Plugins:  cfg.Plugins,
		Log:      slog.New(slog.NewTextHandler(s.log("kubelet"), nil)),
	})
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func makeTempDir(parent string) (string, error) {
	if parent == "" {
		parent = os.TempDir()
		if len(parent) > maxTempDir {
			parent = "/tmp"
		}
	}
	dir, err := os.MkdirTemp(parent, "rdma-gate-")
	if err != nil {
		return "", err
	}
	// The kernel lists mounts by their real paths.
	return filepath.EvalSymlinks(dir)
}

// prepare makes the node and the directories that a DaemonSet's mounts would make.
func (s *Stage) prepare() error {
	for _, d := range []string{"driver", "kubelet/plugins/" + driverName, "kubelet/plugins_registry", "kubelet/pods"} {
		if err := os.MkdirAll(s.path(d), 0o750); err != nil {
			return err
		}
	}
	var err error
	if s.node, err = rdmanode.New(s.path("node")); err != nil {
		return err
	}
	if s.cfg.Launch == nil {
		s.Gate.Args = s.gateArgs()
		return nil
	}
	at := Places{Kubelet: s.path("kubelet"), DriverSocket: s.path("driver"), Host: s.node.Root()}
	s.Gate.Path, s.Gate.Args, err = s.cfg.Launch(at, append(shortArgs(), s.cfg.GateArgs...))
	return err
}

// gateArgs are the flags of a DaemonSet, then those that shorten the story.
func (s *Stage) gateArgs() []string {
	return slices.Concat([]string{
		"--csi-address=" + s.path("driver/csi.sock"),
		"--kubelet-registration-path=" + s.path("kubelet/plugins/"+driverName+"/csi.sock"),
		"--plugin-registration-path=" + s.path("kubelet/plugins_registry"),
	}, shortArgs(), s.probeArgs(), s.cfg.GateArgs)
}

// shortArgs make the story short.
func shortArgs() []string {
	return []string{
		"--rdma-probe-interval=" + probeInterval.String(),
		"--deregister-threshold=5",
		"--deregister-jitter=500ms",
		"--register-jitter=500ms",
		"--shutdown-timeout=" + shutdownTimeout.String(),
	}
}

// probeArgs say which hardware to look at and how. The machine's own name needs no flag.
func (s *Stage) probeArgs() []string {
	if s.hostRoot != "" {
		return []string{"--host-root=" + s.hostRoot}
	}
	args := []string{"--node-name=" + nodeName, "--host-root=" + s.node.Root(), "--rdma-device=" + rdmanode.RoCE}
	if !s.node.Verbs() {
		args = append(args, "--rdma-checks=port,gid,netdev")
	}
	return args
}

// introduce says who plays.
func (s *Stage) introduce() {
	plugins := s.cfg.PluginsName
	if plugins == "" {
		plugins = "a stand-in that speaks its protocol"
	}
	s.say.title("csi-rdma-gate between kubelet and a CSI driver")
	if s.hostRoot != "" {
		s.say.line("node", "the hardware that %s shows", s.hostRoot)
	} else {
		s.say.line("node", "%s, simulated in %s", nodeName, s.node.Root())
	}
	if s.hostRoot == "" && !s.node.Verbs() {
		s.say.line("", "without root it has no verbs devices, so the gate checks port, gid and netdev only")
	}
	s.say.line("kubelet", "%s, in %s", plugins, s.path("kubelet"))
	s.say.line("driver", "%s, on a socket that only the gate knows", driverName)
	s.say.line("gate", "%s", s.Gate.Path)
	for _, a := range s.Gate.Args {
		s.say.line("", "  %s", a)
	}
}

// start starts the driver, the gate and kubelet.
func (s *Stage) start() error {
	s.running.Go(func() {
		if err := s.Kubelet.Run(s.ctx); err != nil {
			s.cancel(fmt.Errorf("kubelet: %w", err))
		}
	})
	if err := s.Driver.Start(); err != nil {
		return err
	}
	return s.Gate.Start()
}

// close ends the children and removes whatever is left. It returns err, or a *LeftoverError.
func (s *Stage) close(err error) error {
	if err != nil && s.caller.Err() == nil {
		s.say.failed(s.logs)
	}
	// The gate first, so that it can take its leave of kubelet. How it ends is of no interest: a
	// process that was only just started dies of the signal.
	_ = s.Gate.Stop(stopGrace)
	s.Driver.Kill()
	s.cancel(context.Canceled)
	s.running.Wait()

	cleanErr := unmountBelow(s.dir)
	mounts, mErr := mountsBelow(s.dir)
	switch {
	case mErr != nil:
		cleanErr = errors.Join(cleanErr, mErr)
	case len(mounts) > 0:
		// Never remove through a mount.
		cleanErr = errors.Join(cleanErr, fmt.Errorf("still mounted: %v", mounts))
	default:
		cleanErr = errors.Join(cleanErr, os.RemoveAll(s.dir))
	}
	if cleanErr != nil {
		return &LeftoverError{errors.Join(err, cleanErr)}
	}
	return err
}

// LeftoverError says that something could not be removed, whatever else went wrong.
type LeftoverError struct{ error }

func (e *LeftoverError) Unwrap() error { return e.error }

func (s *Stage) path(rel string) string { return filepath.Join(s.dir, rel) }

func (s *Stage) log(name string) *child.Tail {
	t := &child.Tail{Lines: logLines}
	s.logs[name] = t
	return t
}

func (s *Stage) program(name, path string) *child.Program {
	t := s.log(name)
	return &child.Program{
		Name: name, Path: path, Stdout: t, Stderr: t,
		Died: func(err error) { s.cancel(err) },
	}
}
