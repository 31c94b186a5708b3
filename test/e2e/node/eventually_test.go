package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestEventuallyTriesUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := Eventually(t.Context(), time.Minute, "time passes", func() error {
			if time.Since(began) < 10*time.Second {
				return errors.New("too early")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestEventuallySaysWhatWasAwaitedAndWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := errors.New("it is closed")
		began := time.Now()
		err := Eventually(t.Context(), time.Minute, "the gate is open", func() error { return last })
		if !errors.Is(err, last) || !strings.Contains(err.Error(), "the gate is open") || time.Since(began) != time.Minute {
			t.Errorf("got %v after %s", err, time.Since(began))
		}

		why := errors.New("kubelet has ended")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		err = Eventually(ctx, time.Minute, "the gate is open", func() error { return last })
		if !errors.Is(err, why) || !errors.Is(err, last) {
			t.Errorf("got %v, want both reasons", err)
		}
	})
}
