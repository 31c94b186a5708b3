package probe

import "context"

// call runs reads that may never return. Nothing can cancel a read that hangs in the kernel, so
// each runs on a goroutine of its own, and while one has not returned no other is started: what
// hangs holds one goroutine, however often it is asked. Not safe for concurrent use.
type call[T any] struct {
	pending chan T // nil when nothing is in flight
	refused bool   // the last start found the one before still in flight
}

// start runs f, unless an earlier one still has not returned. What that one returns too late is
// dropped.
func (c *call[T]) start(f func() T) {
	if c.refused = c.inFlight(); c.refused {
		return
	}
	done := make(chan T, 1)
	c.pending = done
	go func() { done <- f() }()
}

func (c *call[T]) inFlight() bool {
	if c.pending == nil {
		return false
	}
	select {
	case <-c.pending:
		c.pending = nil
		return false
	default:
		return true
	}
}

// wait returns what f returned, or false once ctx has ended, or at once if f was not started.
func (c *call[T]) wait(ctx context.Context) (v T, ok bool) {
	if c.refused {
		return v, false
	}
	select {
	case v = <-c.pending:
	case <-ctx.Done():
		select {
		case v = <-c.pending: // both were ready
		default:
			return v, false
		}
	}
	c.pending = nil
	return v, true
}

// do is start and wait in one.
func (c *call[T]) do(ctx context.Context, f func() T) (T, bool) {
	c.start(f)
	return c.wait(ctx)
}

// abandoned says that f had not returned when it was last asked for.
func (c *call[T]) abandoned() bool { return c.pending != nil }
