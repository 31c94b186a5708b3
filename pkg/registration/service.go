package registration

import (
	"context"
	"regexp"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// service is what kubelet's plugin watcher talks to. It answers from memory.
type service struct {
	registerapi.UnimplementedRegistrationServer
	info     *registerapi.PluginInfo
	notified chan<- *registerapi.RegistrationStatus
}

func (s *service) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return s.info, nil
}

// NotifyRegistrationStatus always succeeds: an error, or the end of this process, sends kubelet from
// 1.36 on into a loop of registering and deregistering.
func (s *service) NotifyRegistrationStatus(_ context.Context, status *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	select {
	case s.notified <- status:
	default: // more than anybody reads; the ones that wait say the same
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// answers says whether somebody serves at path and calls itself driver.
func answers(ctx context.Context, path, driver string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix:"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("localhost"))
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	info, err := registerapi.NewRegistrationClient(conn).GetInfo(ctx, &registerapi.InfoRequest{})
	return err == nil && info.GetName() == driver
}

// driverNames are those that the CSI specification allows (GetPluginInfoResponse.name).
var driverNames = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9.]{0,61}[A-Za-z0-9])?$`)
