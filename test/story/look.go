package story

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// How long Look waits for the driver to be registered: where the probe found RDMA healthy, and
// where it did not.
const (
	lookHealthy = 20 * time.Second
	lookSick    = 4 * time.Second
)

// Look points the gate at real hardware, the tree at hostRoot, and shows the verdict, and, if the
// gate lets the driver be registered, the topology that kubelet learns. It pulls no cable and
// mounts nothing. It leaves nothing behind.
func Look(ctx context.Context, cfg Config, hostRoot string) (err error) {
	s, err := newStage(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = s.close(err) }()
	s.lookAt(hostRoot)
	s.introduce()

	s.say.step(1, "What the gate sees")
	verdict, err := s.probe()
	if err != nil {
		return s.orCause(err)
	}
	if err := s.start(); err != nil {
		return err
	}
	s.say.step(2, "Whether kubelet learns of the driver")
	wait := lookHealthy
	if verdict != 0 {
		wait = lookSick
	}
	waitCtx, cancel := context.WithTimeout(s.ctx, wait)
	defer cancel()
	drv, err := s.Kubelet.Drivers.Wait(waitCtx, driverName, true)
	switch {
	case err == nil:
		s.say.line("kubelet", "%s is registered", driverName)
		s.sayTopology(drv)
	case s.ctx.Err() != nil:
		return context.Cause(s.ctx)
	case verdict == 0:
		return err
	default:
		s.say.line("kubelet", "does not: the gate would refuse every new mount")
	}
	s.say.done("That is all.")
	return nil
}

// lookAt replaces the simulated node.
func (s *Stage) lookAt(hostRoot string) {
	s.hostRoot = hostRoot
	s.Gate.Args = s.gateArgs()
}

// probe prints the table of the gate's subcommand probe and returns its exit status: 0, 1 or 2 for
// healthy, unhealthy or unknown.
func (s *Stage) probe() (int, error) {
	args := append([]string{"probe"}, append(s.probeArgs(), s.cfg.GateArgs...)...)
	out, err := exec.CommandContext(s.ctx, s.Gate.Path, args...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		s.say.line("", "%s", strings.TrimRight(line, "\n"))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && (exit.ExitCode() == 1 || exit.ExitCode() == 2) {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("csi-rdma-gate probe: %w", err)
	}
	return 0, nil
}

// orCause is the reason for which everything ends, if it does, or else err.
func (s *Stage) orCause(err error) error {
	if err != nil && s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	return err
}
