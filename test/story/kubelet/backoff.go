package kubelet

import (
	"context"
	"time"
)

// The waits of kubelet's goroutinemap and nestedpendingoperations.
const (
	firstWait = 500 * time.Millisecond
	lastWait  = 2*time.Minute + 2*time.Second
)

// Backoff yields kubelet's waits after failures: 500 ms, doubling to 2m02s. The zero value is ready.
type Backoff struct{ last time.Duration }

// Next is how long to wait after one more failure.
func (b *Backoff) Next() time.Duration {
	b.last = min(max(2*b.last, firstWait), lastWait)
	return b.last
}

// Retry calls op until it succeeds, with kubelet's waits between the attempts, and returns nil; or
// op's last error when ctx ended.
func Retry(ctx context.Context, op func(context.Context) error) error {
	var b Backoff
	for {
		err := op(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(b.Next()):
		}
	}
}
