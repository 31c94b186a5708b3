// Package proxy answers one question: may this CSI call go through? It stands between kubelet and
// a CSI driver, forwards bytes, and decides about the calls that make a mount from the newest
// snapshot of the hardware's health. It never probes.
package proxy

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// Config is all that a Server needs.
type Config struct {
	// DriverAddress is the path of the driver's socket.
	DriverAddress string
	// Timeout is how long the driver may stay silent where a remembered reply can stand in.
	Timeout time.Duration
	// CallTimeout bounds every forwarded call; 0 leaves it to the caller's deadline.
	CallTimeout time.Duration
	// KubeletDir is kubelet's root directory, at the path at which kubelet itself knows it.
	KubeletDir string
	Gate       GateConfig
	Topology   TopologyConfig
	// StorageHealth advertises and answers NodeGetStorageHealth.
	StorageHealth bool
	// Record is told of every call to the driver that has ended, with the driver's name, which is
	// empty until the driver has told it, and the method, which is "other" if it is not one of a
	// node plugin's. It may be nil.
	Record func(driver, method string, err error, took time.Duration)
}

// Server is the proxy. Its methods are safe for concurrent use.
type Server struct {
	config   Config
	driver   *driver
	replies  *replies
	volumes  *volumes
	gate     *gate
	topology *topology
	grpc     *grpc.Server
	// carry takes a unary call to the driver; a seam for tests.
	carry func(ctx context.Context, caller grpc.ServerStream, method string, request frame) (frame, error)

	forwarding atomic.Int64
	undone     chan struct{}
	stopping   chan struct{}
}

// New returns a Server that does not accept yet. It does not wait for the driver.
func New(config Config) (*Server, error) {
	rs := newReplies(config.Timeout)
	d, err := newDriver(config.DriverAddress, func(method string, err error, took time.Duration) {
		if config.Record != nil {
			config.Record(rs.driverName(), cmp.Or(method, "other"), err, took)
		}
	})
	if err != nil {
		return nil, err
	}
	rs.driver = d
	s := &Server{
		config:   config,
		driver:   d,
		carry:    d.call,
		replies:  rs,
		volumes:  newVolumes(),
		topology: &topology{TopologyConfig: config.Topology},
		undone:   make(chan struct{}, 1),
		stopping: make(chan struct{}),
	}
	s.gate = &gate{GateConfig: config.Gate, volumes: s.volumes, driverName: s.replies.driverName, stopping: s.stopping, mounted: (&mountPoints{table: processMounts}).mounted,
		refusals: refusals{node: config.Gate.NodeName}}
	s.grpc = grpc.NewServer(
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.UnknownServiceHandler(s.handle),
	)
	return s, nil
}

// Inherit lists the volumes with which kubelet has begun, and forgets which ones this gate has seen
// being mounted: what another gate has let through or undone since is not known here, and the mount
// table says what is mounted. It is called whenever the gate's socket has been put in place, so that
// no call to another gate falls between, and before Serve.
func (s *Server) Inherit() {
	attempts, err := listAttempts(s.config.KubeletDir)
	if err != nil {
		klog.ErrorS(err, "Volumes of kubelet cannot be listed, so each one counts as possibly mounted", "kubeletDir", s.config.KubeletDir)
	}
	s.volumes.inherit(newInherited(attempts, err))
}

// Serve accepts calls until the listener is closed.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// handle serves every call there is.
func (s *Server) handle(_ any, caller grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(caller)
	if !strings.HasPrefix(method, "/csi.v1.") {
		return status.Errorf(codes.Unimplemented, "unknown method %s: only csi.v1 services are forwarded", method)
	}
	s.forwarding.Add(1)
	defer s.forwarding.Add(-1)
	switch method {
	case csi.Node_NodeStageVolume_FullMethodName:
		return s.mount(caller, method, decodeStage)
	case csi.Node_NodePublishVolume_FullMethodName:
		return s.mount(caller, method, decodePublish)
	case csi.Node_NodeUnstageVolume_FullMethodName:
		return s.unmount(caller, method, decodeUnstage)
	case csi.Node_NodeUnpublishVolume_FullMethodName:
		return s.unmount(caller, method, decodeUnpublish)
	case csi.Node_NodeGetInfo_FullMethodName,
		csi.Node_NodeGetCapabilities_FullMethodName,
		csi.Identity_GetPluginInfo_FullMethodName,
		csi.Identity_GetPluginCapabilities_FullMethodName:
		return s.describe(caller, method)
	case csi.Node_NodeGetStorageHealth_FullMethodName:
		if s.config.StorageHealth {
			return s.storageHealth(caller, method)
		}
		return s.forward(caller, method)
	default:
		return s.forward(caller, method)
	}
}

// mount asks the gate, then forwards.
func (s *Server) mount(caller grpc.ServerStream, method string, decode func(frame) *request) error {
	f, err := receive(caller)
	if err != nil {
		return err
	}
	r := decode(f)
	if err := s.gate.admit(caller.Context(), r); err != nil {
		return err
	}
	end, err := s.volumes.begin(r)
	if err != nil {
		return status.Error(codes.Unavailable, err.Error())
	}
	err = s.pass(caller, method, f)
	end(err)
	return err
}

// unmount forwards whatever the hardware's state is, and remembers what has been undone.
func (s *Server) unmount(caller grpc.ServerStream, method string, decode func(frame) *request) error {
	f, err := receive(caller)
	if err != nil {
		return err
	}
	end := s.volumes.beginUndo(decode(f))
	err = s.pass(caller, method, f)
	end(err)
	if err == nil {
		select {
		case s.undone <- struct{}{}:
		default:
		}
	}
	return err
}

// pass takes a unary call, whose request has been read, to the driver and the reply back.
func (s *Server) pass(caller grpc.ServerStream, method string, request frame) error {
	ctx, cancel := s.limit(caller.Context())
	defer cancel()
	reply, err := s.carry(ctx, caller, method, request)
	if err != nil {
		return err
	}
	return caller.SendMsg(&reply)
}

// forward takes a call of any shape to the driver.
func (s *Server) forward(caller grpc.ServerStream, method string) error {
	ctx, cancel := s.limit(caller.Context())
	defer cancel()
	return s.driver.forward(ctx, caller, method)
}

func (s *Server) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.config.CallTimeout > 0 {
		return context.WithTimeout(ctx, s.config.CallTimeout)
	}
	return ctx, func() {}
}

// receive reads the one request of a unary call.
func receive(caller grpc.ServerStream) (frame, error) {
	var f frame
	if err := caller.RecvMsg(&f); err != nil {
		return nil, status.Error(codes.Unavailable, fmt.Sprintf("request not received: %v", err))
	}
	return f, nil
}
