package registration

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// starting is a driver that does one thing after another when it is asked for its name, and then
// answers.
type starting struct {
	plugin
	calls []func(context.Context) error
}

func (s *starting) DriverName(ctx context.Context) (string, error) {
	if len(s.calls) == 0 {
		return s.name, nil
	}
	call := s.calls[0]
	s.calls = s.calls[1:]
	return s.name, call(ctx)
}

func refused(context.Context) error { return errors.New("connection refused") }

// silent answers after d, or not within the deadline.
func silent(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestOnlyADriverThatIsSlowGetsMoreTime(t *testing.T) {
	for name, tc := range map[string]struct {
		calls []func(context.Context) error
		took  time.Duration
	}{
		// 1, 2, 4 and then 5 of 8 s, each followed by a second's rest but for the last.
		"slow": {[]func(context.Context) error{
			silent(5 * time.Second), silent(5 * time.Second), silent(5 * time.Second), silent(5 * time.Second),
		}, 15 * time.Second},
		"absent, then silent once": {[]func(context.Context) error{
			refused, refused, refused, refused, refused, refused, refused, refused, silent(time.Hour),
		}, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				d := &starting{plugin: plugin{name: "rdma.example.com"}, calls: tc.calls}
				r := New(Config{Dir: dir, Timeout: time.Second, Driver: d, Health: func() *probe.Health { return &probe.Health{} }})
				began := time.Now()
				if !r.introduce(t.Context()) || time.Since(began) != tc.took {
					t.Errorf("it took %s, want %s", time.Since(began), tc.took)
				}
			})
		})
	}
}
