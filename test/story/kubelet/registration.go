package kubelet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Kubelet's deadlines while it registers a plugin.
const (
	dialTimeout    = 10 * time.Second
	getInfoTimeout = time.Second
	notifyTimeout  = 5 * time.Second
)

// register asks the plugin at path who it is, tells the handler, and tells the plugin how it went.
// An error of the handler is final for this socket, as it is in kubelet up to v1.35: by then the
// plugin counts as present.
func (r *reconciler) register(ctx context.Context, path string, generation int) error {
	conn, err := dial(ctx, path)
	if err != nil {
		return fmt.Errorf("RegisterPlugin error -- dial failed at socket %s, err: %w", path, err)
	}
	defer conn.Close()
	client := registerapi.NewRegistrationClient(conn)

	infoCtx, cancel := context.WithTimeout(ctx, getInfoTimeout)
	defer cancel()
	info, err := client.GetInfo(infoCtx, &registerapi.InfoRequest{})
	if err != nil {
		return fmt.Errorf("RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket %s, err: %w", path, err)
	}
	if info.GetType() != CSIPlugin {
		return notify(ctx, client, fmt.Sprintf("RegisterPlugin error -- no handler registered for plugin type: %s at socket %s", info.GetType(), path))
	}
	endpoint := info.GetEndpoint()
	if endpoint == "" {
		endpoint = path
	}
	if err := r.handler.ValidatePlugin(info.GetName(), endpoint, info.GetSupportedVersions()); err != nil {
		return notify(ctx, client, fmt.Sprintf("RegisterPlugin error -- plugin validation failed with err: %v", err))
	}
	r.mu.Lock()
	r.actual[path] = plugin{name: info.GetName(), endpoint: endpoint, generation: generation}
	r.mu.Unlock()
	if err := r.handler.RegisterPlugin(info.GetName(), endpoint, info.GetSupportedVersions(), nil); err != nil {
		return notify(ctx, client, fmt.Sprintf("RegisterPlugin error -- plugin registration failed with err: %v", err))
	}
	r.log.Info("plugin registered", "name", info.GetName(), "endpoint", endpoint, "path", path)
	return notify(ctx, client, "")
}

// notify tells the plugin that it was registered, or why not; that is then the error.
func notify(ctx context.Context, client registerapi.RegistrationClient, failure string) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	status := &registerapi.RegistrationStatus{PluginRegistered: failure == "", Error: failure}
	if _, err := client.NotifyRegistrationStatus(ctx, status); err != nil {
		return fmt.Errorf("%s: %w", failure, err)
	}
	if failure != "" {
		return errors.New(failure)
	}
	return nil
}

// dial returns a connection that stands.
func dial(ctx context.Context, path string) (*grpc.ClientConn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := newConn(path)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	for s := conn.GetState(); s != connectivity.Ready; s = conn.GetState() {
		if !conn.WaitForStateChange(ctx, s) {
			conn.Close()
			return nil, fmt.Errorf("failed to dial socket %s, err: %w", path, ctx.Err())
		}
	}
	return conn, nil
}

func newConn(path string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	opts = append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", addr)
		}),
	)
	return grpc.NewClient("passthrough:///"+path, opts...)
}
