package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
)

// driver is the CSI driver below the gate. Each known method has a connection of its own, so that
// mounts that hang cannot use up the streams that the driver allows on one and hold up what would
// undo them; kubelet even makes one for each call. Connections are made when they are first needed
// and come back by themselves within a second of the driver's return. Safe for concurrent use.
type driver struct {
	address string
	conns   map[string]*grpc.ClientConn // by method; "" for those that are not known
	// record is told of every call that has ended; method is "" for one that is not known.
	record func(method string, err error, took time.Duration)
	// closed is set when we end the calls that are still with the driver.
	closed atomic.Bool
}

// connectBackoff keeps every wait below a second, jitter included.
var connectBackoff = backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 800 * time.Millisecond}

func newDriver(address string, record func(method string, err error, took time.Duration)) (*driver, error) {
	d := &driver{address: address, conns: map[string]*grpc.ClientConn{}, record: record}
	for _, method := range knownMethods() {
		conn, err := grpc.NewClient("unix:"+address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			// What kubelet sends; some drivers' HTTP/2 stacks refuse a path as authority.
			grpc.WithAuthority("localhost"),
			grpc.WithConnectParams(grpc.ConnectParams{Backoff: connectBackoff, MinConnectTimeout: 5 * time.Second}),
			grpc.WithDisableServiceConfig(),
			grpc.WithIdleTimeout(0),
			grpc.WithStatsHandler(answerWatch{}),
			grpc.WithDefaultCallOptions(
				grpc.ForceCodecV2(codec{}),
				grpc.MaxCallRecvMsgSize(math.MaxInt32),
				grpc.MaxCallSendMsgSize(math.MaxInt32)),
		)
		if err != nil {
			return nil, err
		}
		d.conns[method] = conn
	}
	return d, nil
}

// knownMethods are those that a node plugin serves, and "" for every other.
func knownMethods() []string {
	methods := []string{""}
	for _, service := range []grpc.ServiceDesc{csi.Identity_ServiceDesc, csi.Node_ServiceDesc} {
		for _, m := range service.Methods {
			methods = append(methods, "/"+service.ServiceName+"/"+m.MethodName)
		}
	}
	return methods
}

// known returns the method itself, or "" if it is not known.
func (d *driver) known(method string) string {
	if _, ok := d.conns[method]; ok {
		return method
	}
	return ""
}

func (d *driver) conn(method string) *grpc.ClientConn { return d.conns[d.known(method)] }

// recorded is deferred by every call, so that what is recorded is what the caller is told.
func (d *driver) recorded(method string, begin time.Time, err *error) {
	d.record(d.known(method), *err, time.Since(begin))
}

// forward carries one call of any shape, unary or streaming, between caller and driver. ctx is the
// caller's, or one derived from it.
func (d *driver) forward(ctx context.Context, caller grpc.ServerStream, method string) (err error) {
	defer d.recorded(method, time.Now(), &err)
	ctx, cancel := context.WithCancel(outgoing(ctx))
	defer cancel()
	ctx, answered := watchAnswer(ctx)
	stream, err := d.conn(method).NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return d.explain(ctx, answered, err)
	}
	go sendAll(caller, stream, cancel)

	for first := true; ; first = false {
		var reply frame
		err := stream.RecvMsg(&reply)
		if header, herr := stream.Header(); first && herr == nil {
			_ = caller.SetHeader(header)
		}
		if err != nil {
			caller.SetTrailer(stream.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return d.explain(ctx, answered, err)
		}
		if err := caller.SendMsg(&reply); err != nil {
			return err
		}
	}
}

// sendAll pumps the caller's requests to the driver until either side has had enough.
func sendAll(caller grpc.ServerStream, stream grpc.ClientStream, cancel context.CancelFunc) {
	for {
		var f frame
		if err := caller.RecvMsg(&f); errors.Is(err, io.EOF) {
			_ = stream.CloseSend()
			return
		} else if err != nil {
			cancel()
			return
		}
		if stream.SendMsg(&f) != nil {
			return // the reading side learns why
		}
	}
}

// call makes one unary call and returns the driver's reply, byte for byte. Headers and trailers
// reach the caller when there is one.
func (d *driver) call(ctx context.Context, caller grpc.ServerStream, method string, request frame) (reply frame, err error) {
	defer d.recorded(method, time.Now(), &err)
	ctx, answered := watchAnswer(outgoing(ctx))
	var header, trailer metadata.MD
	err = d.conn(method).Invoke(ctx, method, &request, &reply, grpc.Header(&header), grpc.Trailer(&trailer))
	if caller != nil {
		_ = caller.SetHeader(header)
		caller.SetTrailer(trailer)
	}
	if err != nil {
		return nil, d.explain(ctx, answered, err)
	}
	return reply, nil
}

// awaitReady waits at most timeout for a connection. It is no error if there is none: the call
// that follows says why.
func (d *driver) awaitReady(ctx context.Context, method string, timeout time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn := d.conn(method)
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		conn.Connect()
		if !conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// explain turns trouble on the way to the driver into Unavailable, which kubelet never takes for
// the driver's final word. What the driver itself has answered, and the end of the caller's own
// patience, pass unchanged.
func (d *driver) explain(ctx context.Context, answered *atomic.Bool, err error) error {
	if answered.Load() || ctx.Err() != nil {
		return err
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded: // the driver's timer for this call ran out before ours
		if !d.closed.Load() {
			return err
		}
	}
	return status.Errorf(codes.Unavailable, "CSI driver not reachable at %s: %s%s", d.address, status.Convert(err).Message(), d.advice())
}

// advice tells a volume that is not mounted from a driver that has not started.
func (d *driver) advice() string {
	dir := filepath.Dir(d.address)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return fmt.Sprintf("; there is no %s: mount the volume that the driver puts its socket in", dir)
}

func (d *driver) close() {
	d.closed.Store(true)
	for _, conn := range d.conns {
		_ = conn.Close()
	}
}

// outgoing hands the caller's metadata on, less the transport's own keys, which gRPC makes anew
// (those without the prefix it drops by itself).
func outgoing(ctx context.Context) context.Context {
	in, ok := metadata.FromIncomingContext(ctx)
	if !ok {
		return ctx
	}
	out := metadata.MD{}
	for k, v := range in {
		if !strings.HasPrefix(k, "grpc-") {
			out[k] = v
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// answerWatch notices whether a call's status came from the driver. gRPC's errors do not say, and
// a connection that breaks can look like the driver's own Internal.
type answerWatch struct{}

type answeredKey struct{}

func watchAnswer(ctx context.Context) (context.Context, *atomic.Bool) {
	answered := new(atomic.Bool)
	return context.WithValue(ctx, answeredKey{}, answered), answered
}

func (answerWatch) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

func (answerWatch) HandleRPC(ctx context.Context, s stats.RPCStats) {
	if _, ok := s.(*stats.InTrailer); !ok {
		return
	}
	if answered, ok := ctx.Value(answeredKey{}).(*atomic.Bool); ok {
		answered.Store(true)
	}
}

func (answerWatch) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (answerWatch) HandleConn(context.Context, stats.ConnStats)                       {}
