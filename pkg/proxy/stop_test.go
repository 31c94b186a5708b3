package proxy

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
)

func TestStopServesOnUntilCallsHaveEnded(t *testing.T) {
	r := newRig(t, nil)
	called, finish := make(chan struct{}, 2), make(chan struct{})
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		called <- struct{}{}
		<-finish
		return stream.SendMsg(&frame{})
	})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- r.stage("v", "/s") }()
	<-called
	stopped := make(chan struct{})
	go func() {
		r.Stop(t.Context())
		close(stopped)
	}()
	<-r.stopping
	go func() { second <- r.unstage("w", "/s") }() // kubelet goes on calling
	<-called
	select {
	case <-stopped:
		t.Error("stopped with calls at the driver")
	default:
	}
	close(finish)
	wantCode(t, "the call in flight", <-first, codes.OK)
	wantCode(t, "the call during shutdown", <-second, codes.OK)
	<-stopped
	r.Close(t.Context())
}

// hangingStage is the end of a call that the driver has and does not answer.
func hangingStage(r *rig) <-chan error {
	called, ended := make(chan struct{}), make(chan error, 1)
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		close(called)
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	go func() { ended <- r.stage("v", "/s") }()
	<-called
	return ended
}

func TestStopGivesUpAtItsDeadline(t *testing.T) {
	r := newRig(t, nil)
	first := hangingStage(r)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	r.Stop(over)
	r.Close(over)
	wantCode(t, "a call that was given up is not final", <-first, codes.Unavailable)
}

// As the one before, with the caller's connection still there when the driver's is closed.
func TestACallThatWeEndIsNotFinal(t *testing.T) {
	r := newRig(t, nil)
	first := hangingStage(r)
	r.Server.driver.close()
	wantCode(t, "the call", <-first, codes.Unavailable)
}
