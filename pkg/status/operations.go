package status

import (
	"sync"
	"time"

	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
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
