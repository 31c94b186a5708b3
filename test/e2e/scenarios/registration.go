package scenarios

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
)

// Registration is how the driver stays registered, or comes back, whatever restarts, fails or
// interferes. Throughout, pods that run are not touched, and pods that are deleted go.
func Registration() []harness.Scenario {
	return []harness.Scenario{
		{Name: "registration-kubelet", Play: kubeletRestarts},
		{Name: "registration-gate", Play: gateAndDriverRestart},
		{Name: "registration-reboot", Play: reboot},
		{Name: "registration-refused", Play: registrationRefused},
		{Name: "registration-registrar", Play: forgottenRegistrar},
		{Name: "registration-volumes", Play: volumesTurnUp},
		{Name: "registration-often", Play: faultsTooOften},
	}
}

// kubeletsWord is what the gate logs when kubelet tells it that the driver is registered.
const kubeletsWord = "Kubelet has registered the driver"

// deadSocketRemoved is what it logs when it finds the registration socket of a gate that was killed.
const deadSocketRemoved = "Removed a registration socket on which nobody listens"

// otherProcess is what it logs when somebody else serves the registration socket.
const otherProcess = "Another process serves the registration socket"

// timesInLog says how often a container of the driver's pod has logged something since it was started.
func timesInLog(ctx context.Context, s *harness.Scene, container, text string) (int, error) {
	log, err := s.Log(ctx, container)
	return strings.Count(log, text), err
}

// awaitInLog waits until it has logged it so many times.
func awaitInLog(ctx context.Context, s *harness.Scene, container, text string, times int) error {
	return harness.Eventually(ctx, harness.BackOff, fmt.Sprintf("%s has logged %q %d times", container, text, times), func() error {
		n, err := timesInLog(ctx, s, container, text)
		if err == nil && n < times {
			err = fmt.Errorf("%d times", n)
		}
		return err
	})
}

// awaitAgain does something after which kubelet registers the driver again, and waits until it has. It
// returns how long that took. CSINode alone would not tell the new registration from the old one.
func awaitAgain(ctx context.Context, s *harness.Scene, do func() error) (time.Duration, error) {
	before, err := timesInLog(ctx, s, "gate", kubeletsWord)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	done := time.Now()
	if err := awaitInLog(ctx, s, "gate", kubeletsWord, before+1); err != nil {
		return 0, err
	}
	return time.Since(done), s.AwaitRegistered(ctx, true)
}

// removeAndAwait removes a file of the node's, and waits until it is back.
func removeAndAwait(ctx context.Context, s *harness.Scene, path string) (time.Duration, error) {
	file := s.Node.Path(path)
	if err := os.Remove(file); err != nil {
		return 0, err
	}
	removed := time.Now()
	err := harness.Eventually(ctx, harness.Patience, path+" is back", func() error {
		_, err := os.Lstat(file)
		return err
	})
	return time.Since(removed), err
}

// awaitObstacle waits until the gate says at /status what keeps the driver from being registered.
func awaitObstacle(ctx context.Context, s *harness.Scene, part string) error {
	return harness.Eventually(ctx, harness.Patience, "the gate's status names the obstacle", func() error {
		status, err := s.GateStatus(ctx)
		if err == nil && !strings.Contains(status.Registration.Obstacle, part) {
			err = fmt.Errorf("it says %q, not %q", status.Registration.Obstacle, part)
		}
		return err
	})
}

// awaitSustained waits until trouble counts for the registration.
func awaitSustained(ctx context.Context, s *harness.Scene) error {
	return harness.Eventually(ctx, harness.Patience, "trouble counts for the registration", func() error {
		status, err := s.GateStatus(ctx)
		if err == nil && !status.Registration.Sustained {
			err = errors.New("not yet")
		}
		return err
	})
}

// awaitMetric waits until a counter of the gate's has reached a value, and returns what it is then.
func awaitMetric(ctx context.Context, s *harness.Scene, name string, least int) (value int, err error) {
	err = harness.Eventually(ctx, harness.Patience, fmt.Sprintf("%s is at least %d", name, least), func() error {
		now, err := metric(ctx, s, name)
		if value = now; err == nil && value < least {
			err = fmt.Errorf("it is %d", value)
		}
		return err
	})
	return value, err
}

func metric(ctx context.Context, s *harness.Scene, name string) (int, error) {
	text, err := s.Metric(ctx, name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

// stillRegistered sees that CSINode has the driver now.
func stillRegistered(ctx context.Context, s *harness.Scene) error {
	registered, err := s.Registered(ctx)
	if err == nil && !registered {
		err = errors.New("the driver is not in CSINode")
	}
	return err
}

// settled is longer than a deregistration that has been decided takes here: the jitter of a second, and
// kubelet's own.
const settled = 4 * time.Second

// staysRegistered sees that CSINode has the driver, and goes on having it.
func staysRegistered(ctx context.Context, s *harness.Scene) error {
	presence := s.WatchPresence()
	defer presence.Stop()
	began := time.Now()
	select {
	case <-time.After(settled):
	case <-ctx.Done():
		return ctx.Err()
	}
	if missing := presence.MissingSince(began); missing > 0 {
		return fmt.Errorf("the driver was not in CSINode for %.1f s", missing.Seconds())
	}
	return stillRegistered(ctx, s)
}

// leave deletes pods, and sees that each of them goes, its volume with it, and that the driver is
// registered: nothing that happened before has left a trace.
func leave(s *harness.Scene, pods ...string) {
	s.Step("deleted, the pods end and their volumes are unmounted", func(ctx context.Context) error {
		for _, pod := range pods {
			if err := s.DeletePod(ctx, pod); err != nil {
				return err
			}
		}
		for _, pod := range pods {
			if err := errors.Join(s.AwaitGone(ctx, "pod", pod), awaitUnmounted(ctx, s, pod)); err != nil {
				return err
			}
		}
		return stillRegistered(ctx, s)
	})
}
