package status

import (
	"sync"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Operations are the calls to the driver, in csi_sidecar_operations_seconds as every CSI sidecar has
// it. Calls before the driver has told its name are not in it. Safe for concurrent use.
type Operations struct {
	mu      sync.Mutex
	manager metrics.CSIMetricsManager
}

// Record notes a call that has ended.
func (o *Operations) Record(driver, method string, err error, took time.Duration) {
	if driver == "" {
		return
	}
	o.mu.Lock()
	if o.manager == nil {
		o.manager = metrics.NewCSIMetricsManagerForSidecar(driver)
	}
	manager := o.manager
	o.mu.Unlock()
	if status.Code(err) > codes.Unauthenticated { // the last that gRPC knows; a driver can make up others
		err = status.Error(codes.Unknown, "")
	}
	manager.RecordMetrics(method, err, took)
}

// Gather implements prometheus.Gatherer.
func (o *Operations) Gather() ([]*dto.MetricFamily, error) {
	o.mu.Lock()
	manager := o.manager
	o.mu.Unlock()
	if manager == nil {
		return nil, nil
	}
	return manager.GetRegistry().Gather()
}

var _ prometheus.Gatherer = (*Operations)(nil)
