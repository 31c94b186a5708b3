package harness

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
)

// StorageHealth is what CSINode's status has of the driver's, on a node that has parts.StorageHealth.
func (s *Scene) StorageHealth(ctx context.Context) ([]storagev1.StorageHealthCondition, error) {
	var csiNode storagev1.CSINode
	if err := s.Get(ctx, &csiNode, "csinode", node.Name); err != nil {
		return nil, err
	}
	for _, health := range csiNode.Status.StorageHealth {
		if health.Name == DriverName {
			return health.HealthConditions, nil
		}
	}
	return nil, nil
}
