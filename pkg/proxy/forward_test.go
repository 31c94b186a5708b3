package proxy

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// unknownFields is a message in which every field is one that no CSI version has.
var unknownFields = frame("\xf2\x3f\x07\x68\x65\x6c\x6c\x6f\x20\x21") // field 1022, "hello !"

func (r *rig) raw(ctx context.Context, method string, request frame, opts ...grpc.CallOption) (frame, error) {
	var reply frame
	err := r.conn.Invoke(ctx, method, &request, &reply, append(opts, grpc.ForceCodecV2(codec{}))...)
	return reply, err
}

func TestBytesPassUntouched(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Topology.Mode = TopologyOff })
	var got frame
	answer := append(frame{}, unknownFields...)
	r.driver.set(func(_ string, stream grpc.ServerStream, request frame) error {
		got = request
		return stream.SendMsg(&answer)
	})
	for _, method := range []string{
		csi.Node_NodeStageVolume_FullMethodName,
		csi.Node_NodePublishVolume_FullMethodName,
		csi.Node_NodeUnstageVolume_FullMethodName,
		csi.Node_NodeUnpublishVolume_FullMethodName,
		csi.Node_NodeGetInfo_FullMethodName,
		csi.Node_NodeGetCapabilities_FullMethodName,
		csi.Node_NodeGetVolumeStats_FullMethodName,
		csi.Node_NodeExpandVolume_FullMethodName,
		csi.Identity_GetPluginInfo_FullMethodName,
		csi.Identity_GetPluginCapabilities_FullMethodName,
		csi.Identity_Probe_FullMethodName,
		csi.Controller_CreateVolume_FullMethodName,
		"/csi.v1.Node/NodeDoWhatNobodyKnowsYet",
		"/csi.v1.Future/Anything",
	} {
		reply, err := r.raw(t.Context(), method, unknownFields)
		if err != nil || !bytes.Equal(got, unknownFields) || !bytes.Equal(reply, answer) {
			t.Errorf("%s: request %q, reply %q, %v", method, got, reply, err)
		}
	}
}

func TestServicesOutsideCSIAreUnimplemented(t *testing.T) {
	r := newRig(t, nil)
	for _, method := range []string{"/grpc.health.v1.Health/Check", "/csi.v0.Node/NodeGetInfo", "/csi.v1/x"} {
		if _, err := r.raw(t.Context(), method, nil); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", method, err)
		}
		if r.driver.count(method) != 0 {
			t.Errorf("%s reached the driver", method)
		}
	}
}

func TestAStreamPasses(t *testing.T) {
	r := newRig(t, nil)
	r.driver.set(func(_ string, stream grpc.ServerStream, request frame) error {
		for err := error(nil); err == nil; err = stream.RecvMsg(&request) {
			if err := stream.SendMsg(&request); err != nil {
				return err
			}
		}
		return nil
	})
	stream, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		"/csi.v1.SnapshotMetadata/GetMetadataDelta", grpc.ForceCodecV2(codec{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"one", "two", "three"} {
		f := frame(want)
		if err := stream.SendMsg(&f); err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(&f); err != nil || string(f) != want {
			t.Fatalf("got %q, %v; want %q", f, err, want)
		}
	}
	_ = stream.CloseSend()
	if err := stream.RecvMsg(new(frame)); !errors.Is(err, io.EOF) {
		t.Errorf("end of stream: %v", err)
	}
}

func TestTheDriversErrorPassesWithDetailsHeadersAndTrailers(t *testing.T) {
	for _, method := range []string{csi.Node_NodeStageVolume_FullMethodName, csi.Node_NodeGetInfo_FullMethodName} {
		r := newRig(t, nil)
		r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
			_ = stream.SetHeader(metadata.Pairs("h", "1"))
			stream.SetTrailer(metadata.Pairs("t", "2"))
			s, _ := status.New(codes.Internal, "disk on fire").WithDetails(&errdetails.ErrorInfo{Reason: "FIRE"})
			return s.Err()
		})
		var header, trailer metadata.MD
		_, err := r.raw(t.Context(), method, nil, grpc.Header(&header), grpc.Trailer(&trailer))
		s := status.Convert(err)
		if s.Code() != codes.Internal || s.Message() != "disk on fire" || len(s.Details()) != 1 {
			t.Errorf("%s: %v with details %v", method, err, s.Details())
		}
		if got := trailer.Get("t"); len(got) != 1 || got[0] != "2" {
			t.Errorf("%s: trailer %v", method, trailer)
		}
		if got := append(header.Get("h"), trailer.Get("h")...); len(got) != 1 || got[0] != "1" {
			t.Errorf("%s: header %v", method, header)
		}
	}
}

func TestTheCallersMetadataPasses(t *testing.T) {
	r := newRig(t, nil)
	seen := make(chan metadata.MD, 1)
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		md, _ := metadata.FromIncomingContext(stream.Context())
		seen <- md
		return stream.SendMsg(&frame{})
	})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "trace", "abc")
	if _, err := r.raw(ctx, csi.Identity_Probe_FullMethodName, nil); err != nil {
		t.Fatal(err)
	}
	md := <-seen
	if got := md.Get("trace"); len(got) != 1 || got[0] != "abc" {
		t.Errorf("metadata %v", md)
	}
	if got := md.Get(":authority"); len(got) != 1 || got[0] != "localhost" {
		t.Errorf("authority %v, want localhost as kubelet sends it", got)
	}
}

func TestDeadlineAndCancellationReachTheDriver(t *testing.T) {
	r := newRig(t, nil)
	deadlines := make(chan time.Time, 1)
	ended := make(chan error, 1)
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		deadline, _ := stream.Context().Deadline()
		deadlines <- deadline
		<-stream.Context().Done()
		ended <- context.Cause(stream.Context())
		return stream.Context().Err()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	result := make(chan error, 1)
	go func() {
		_, err := r.raw(ctx, csi.Node_NodeStageVolume_FullMethodName, nil)
		result <- err
	}()
	if left := time.Until(<-deadlines); left < 50*time.Minute || left > time.Hour {
		t.Errorf("the driver sees a deadline in %v, want about an hour", left)
	}
	cancel()
	<-ended
	if err := <-result; status.Code(err) != codes.Canceled {
		t.Errorf("caller gets %v", err)
	}
}

func TestNoLimitOnMessages(t *testing.T) {
	r := newRig(t, nil)
	big := make(frame, 5<<20) // above gRPC's default of 4 MiB
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error { return stream.SendMsg(&big) })
	for _, method := range []string{"/csi.v1.Node/Streamed", csi.Node_NodeUnstageVolume_FullMethodName} {
		reply, err := r.raw(t.Context(), method, big, grpc.MaxCallRecvMsgSize(8<<20))
		if err != nil || len(reply) != len(big) {
			t.Errorf("%s: %d bytes, %v", method, len(reply), err)
		}
	}
}

// awaitDriver returns once calls reach the driver again.
func (r *rig) awaitDriver() {
	r.t.Helper()
	for r.t.Context().Err() == nil {
		up := true
		for _, method := range knownMethods() {
			r.Server.driver.awaitReady(r.t.Context(), method, 10*time.Second)
			_, err := r.raw(r.t.Context(), cmp.Or(method, "/csi.v1.Other/Other"), nil)
			up = up && status.Code(err) != codes.Unavailable
		}
		if up {
			return
		}
	}
}

func TestABrokenConnectionIsUnavailable(t *testing.T) {
	r := newRig(t, nil)
	called := make(chan struct{})
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		close(called)
		<-stream.Context().Done()
		return errors.New("too late")
	})
	result := make(chan error, 1)
	go func() { result <- r.stage("v", "/s") }()
	<-called
	r.driver.stop()
	if err := <-result; status.Code(err) != codes.Unavailable {
		t.Errorf("the driver died in the middle of the call: %v", err)
	}
	if err := r.stage("v", "/s"); status.Code(err) != codes.Unavailable {
		t.Errorf("the driver is gone: %v", err)
	}
	r.driver.set(nil)
	r.driver.start(t)
	r.awaitDriver()
	if err := r.stage("v", "/s"); err != nil {
		t.Errorf("the driver is back: %v", err)
	}
}

func TestDriverCallTimeoutBoundsACall(t *testing.T) {
	r := newRig(t, func(c *Config) { c.CallTimeout = 10 * time.Millisecond })
	r.driver.set(func(_ string, stream grpc.ServerStream, _ frame) error {
		<-stream.Context().Done()
		return stream.Context().Err()
	})
	// Driver and gate both have a timer for the call, and either can be the first.
	if err := r.stage("v", "/s"); status.Code(err) != codes.DeadlineExceeded && status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
}
