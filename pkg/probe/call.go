package probe

import "context"

// call runs reads that may never return. Nothing can cancel a read that hangs in the kernel, so
// each runs on a goroutine of its own, and while one has not returned no other is started: what
// hangs holds one goroutine, however often it is asked. Not safe for concurrent use.
type call[T any] struct {
	pending chan T
}

// start runs f, unless an earlier one still has not returned; what that one returns too late is
// dropped.
func (c *call[T]) start(f func() T) bool {
	if c.pending != nil {
		select {
		case <-c.pending:
		default:
			return false
		}
	}
	done := make(chan T, 1)
	c.pending = done
	go func() { done <- f() }()
	return true
}

// wait returns what f returned, or false once ctx has ended.
func (c *call[T]) wait(ctx context.Context) (T, bool) {
	select {
	case v := <-c.pending:
		c.pending = nil
		return v, true
	case <-ctx.Done():
	}
	select {
	case v := <-c.pending: // both were ready
		c.pending = nil
		return v, true
	default:
		var zero T
		return zero, false
	}
}

// do is start and wait in one.
func (c *call[T]) do(ctx context.Context, f func() T) (T, bool) {
	if !c.start(f) {
		var zero T
		return zero, false
	}
	return c.wait(ctx)
}

// stuck says that a read has not returned, as far as the last start or wait could tell.
func (c *call[T]) stuck() bool { return c.pending != nil }
