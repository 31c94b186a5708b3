package proxy

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

// Stop serves on until no call is with the driver, at most until ctx ends. The caller then removes
// the socket and calls Close.
func (s *Server) Stop(ctx context.Context) {
	close(s.stopping)
	if !s.drain(ctx) {
		klog.InfoS("Calls that are still with the driver are given up", "calls", s.forwarding.Load())
	}
	s.gate.refusals.sumUpAll()
}

// drain waits until no call is with the driver. It returns false if ctx ends before.
func (s *Server) drain(ctx context.Context) bool {
	// A look every 10 ms: the number is all that counts, and this happens twice.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for s.forwarding.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// Close stops accepting and ends every connection, after the calls that came last have ended, at most
// until ctx ends. It does not wait for a client that has connected and says nothing.
func (s *Server) Close(ctx context.Context) {
	const farewell = 500 * time.Millisecond
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(farewell):
		s.drain(ctx)
		go s.grpc.Stop() // it waits for handshakes
	case <-ctx.Done():
		go s.grpc.Stop()
	}
	s.driver.close()
}
