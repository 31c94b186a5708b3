package kubelet

import "fmt"

// EventError is a failed operation on a volume. Its text is that of the pod's event.
type EventError struct {
	// Operation is "MountVolume.MountDevice", "MountVolume.SetUp", "UnmountVolume.TearDown" or
	// "UnmountDevice". Kubelet writes events for the first two only and logs the others.
	Operation string
	PV        string
	Err       error
}

func (e *EventError) Error() string {
	return fmt.Sprintf("%s failed for volume %q : %v", e.Operation, e.PV, e.Err)
}

func (e *EventError) Unwrap() error { return e.Err }

// transientError is a failure before the driver was called. It leaves what kubelet believes of the
// volume as it was.
type transientError struct{ error }

func (e transientError) Unwrap() error { return e.error }

// uncertainError is a failure after which the volume may be mounted.
type uncertainError struct{ error }

func (e uncertainError) Unwrap() error { return e.error }

// notRegistered is the error for a driver that is not there.
func notRegistered(doing, driver string) error {
	return transientError{fmt.Errorf("kubernetes.io/csi: %s: driver name %s not found in the list of registered CSI drivers", doing, driver)}
}
