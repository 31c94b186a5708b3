package podresources

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// kubelet answers as it is told.
type kubelet struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
	answer func(context.Context) (*podresourcesapi.AllocatableResourcesResponse, error)
}

func (k *kubelet) GetAllocatableResources(ctx context.Context, _ *podresourcesapi.AllocatableResourcesRequest) (*podresourcesapi.AllocatableResourcesResponse, error) {
	return k.answer(ctx)
}

// socketPath is short enough for a socket, which t.TempDir may not be.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "podres")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "kubelet.sock")
}

func serve(t *testing.T, answer func(context.Context) (*podresourcesapi.AllocatableResourcesResponse, error)) (socket string) {
	t.Helper()
	socket = socketPath(t)
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxSendMsgSize(maxReply))
	podresourcesapi.RegisterPodResourcesListerServer(server, &kubelet{answer: answer})
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return socket
}

func devices(resource string, ids ...string) *podresourcesapi.ContainerDevices {
	return &podresourcesapi.ContainerDevices{ResourceName: resource, DeviceIds: ids}
}

func TestAdvertised(t *testing.T) {
	for name, c := range map[string]struct {
		devices []*podresourcesapi.ContainerDevices
		want    []string
	}{
		"none": {},
		// Kubelet makes an entry of each device, and one for each NUMA node that it is near to.
		"several of each":  {[]*podresourcesapi.ContainerDevices{devices("rdma/hca", "0"), devices("nvidia.com/gpu", "a"), devices("rdma/hca", "1"), devices("rdma/hca", "1")}, []string{"nvidia.com/gpu", "rdma/hca"}},
		"named, no device": {[]*podresourcesapi.ContainerDevices{devices("rdma/hca"), devices("rdma/b", "0")}, []string{"rdma/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			socket := serve(t, func(context.Context) (*podresourcesapi.AllocatableResourcesResponse, error) {
				return &podresourcesapi.AllocatableResourcesResponse{Devices: c.devices}, nil
			})
			got, err := Advertised(t.Context(), socket)
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestReplyBeyondTheUsualLimit(t *testing.T) {
	socket := serve(t, func(context.Context) (*podresourcesapi.AllocatableResourcesResponse, error) {
		r := &podresourcesapi.AllocatableResourcesResponse{}
		for i := range 50000 {
			r.Devices = append(r.Devices, devices("rdma/hca", strings.Repeat("x", 100)+strconv.Itoa(i)))
		}
		return r, nil
	})
	if got, err := Advertised(t.Context(), socket); err != nil || !slices.Equal(got, []string{"rdma/hca"}) {
		t.Errorf("%q %v", got, err)
	}
}

func TestErrorsAreShort(t *testing.T) {
	limited := serve(t, func(context.Context) (*podresourcesapi.AllocatableResourcesResponse, error) {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	})
	dead := socketPath(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for socket, want := range map[string]string{
		limited:       "GetAllocatableResources: ResourceExhausted: rejected by rate limit",
		dead:          "connect: connection refused",
		socketPath(t): "connect: no such file or directory",
	} {
		if _, err := Advertised(t.Context(), socket); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := Advertised(t.Context(), socketPath(t)); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
}

func TestSilenceEndsWithTheContext(t *testing.T) {
	asked := make(chan struct{})
	hung := serve(t, func(ctx context.Context) (*podresourcesapi.AllocatableResourcesResponse, error) {
		close(asked)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := Advertised(ctx, hung); err == nil {
		t.Error("no error")
	}

	// One that accepts and never says a word.
	mute := socketPath(t)
	l, err := net.Listen("unix", mute)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Advertised(ctx, mute); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}
