// Command registrar is a stand-in for csi-node-driver-registrar, for tests of what happens when somebody
// forgot to take that sidecar out. Towards kubelet it does the same: it removes whatever has the
// registration socket's name, listens there itself, tells the driver's name and takes kubelet's word on
// the registration. It does nothing else that the real one does.
//
// It writes what kubelet says to stdout, such as "registered: true".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "registrar:", err)
		os.Exit(1)
	}
}

// run has the flags of csi-node-driver-registrar that every DaemonSet sets.
func run(ctx context.Context) error {
	address := flag.String("csi-address", "/run/csi/socket", "the driver's `socket`")
	endpoint := flag.String("kubelet-registration-path", "", "that `socket` as kubelet sees it")
	dir := flag.String("plugin-registration-path", "/registration", "kubelet's plugins_registry, a `directory`")
	flag.Parse()
	if *endpoint == "" {
		return errors.New("--kubelet-registration-path is required")
	}
	name, err := driverName(ctx, *address)
	if err != nil {
		return err
	}
	path := filepath.Join(*dir, name+"-reg.sock")
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registerapi.RegisterRegistrationServer(server, registration{info: &registerapi.PluginInfo{
		Type: registerapi.CSIPlugin, Name: name, Endpoint: *endpoint, SupportedVersions: []string{"1.0.0"},
	}})
	defer context.AfterFunc(ctx, server.Stop)()
	return server.Serve(l)
}

// driverName waits for the driver.
func driverName(ctx context.Context, address string) (string, error) {
	conn, err := grpc.NewClient("unix:"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	info, err := csi.NewIdentityClient(conn).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	return info.GetName(), err
}

type registration struct {
	registerapi.UnimplementedRegistrationServer
	info *registerapi.PluginInfo
}

// GetInfo implements registerapi.RegistrationServer.
func (r registration) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return r.info, nil
}

// NotifyRegistrationStatus implements registerapi.RegistrationServer.
func (registration) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	fmt.Println("registered:", s.GetPluginRegistered(), s.GetError())
	return &registerapi.RegistrationStatusResponse{}, nil
}
