package kubelet

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Volume is a persistent volume of a CSI driver, as its PersistentVolume says. Mode is file system,
// access mode ReadWriteOnce.
type Volume struct {
	// PV is the name of the PersistentVolume, Handle the volume's id.
	PV, Driver, Handle string
	ReadOnly           bool
	FSType             string
	MountFlags         []string
	// Context and PublishContext reach the driver as they are.
	Context, PublishContext map[string]string
}

// StagingPath is where the volume is staged.
func (k *Kubelet) StagingPath(v Volume) string {
	hash := fmt.Sprintf("%x", sha256.Sum256([]byte(v.Handle)))
	return filepath.Join(k.cfg.Dir, "plugins", "kubernetes.io", "csi", v.Driver, hash, "globalmount")
}

// TargetPath is where the volume is published for the pod.
func (k *Kubelet) TargetPath(podUID string, v Volume) string {
	pv := strings.ReplaceAll(v.PV, "/", "~")
	return filepath.Join(k.cfg.Dir, "pods", podUID, "volumes", "kubernetes.io~csi", pv, "mount")
}

// mountState is what kubelet believes of a staging or a target path.
type mountState struct {
	is mounted
	// reconstructed is true for what was found on disk after a restart: no error convinces
	// kubelet that it is not mounted.
	reconstructed bool
}

type mounted uint8

const (
	no mounted = iota
	// uncertain is after an attempt whose end is not known.
	uncertain
	yes
)

// failed is the state after err.
func (s mountState) failed(err error) mountState {
	var te transientError
	var ue uncertainError
	switch {
	case errors.As(err, &te):
	case errors.As(err, &ue):
		if s.is == no {
			s.is = uncertain
		}
	case s.is == uncertain && !s.reconstructed:
		s.is = no
	}
	return s
}

// volumeState is what kubelet believes of a volume. Its mutex is held for the length of an
// operation: kubelet does one at a time for each volume.
type volumeState struct {
	mu     sync.Mutex
	device mountState
	// pods is keyed by the pod's UID.
	pods map[string]mountState
}

// used says whether a pod's mount of the volume exists or may exist.
func (s *volumeState) used() bool {
	for _, p := range s.pods {
		if p.is != no {
			return true
		}
	}
	return false
}

// state returns the volume's state, locked, and with the pod's part of it found on disk if it is
// not known.
func (k *Kubelet) state(podUID string, v Volume) *volumeState {
	k.mu.Lock()
	key := v.Driver + "^" + v.Handle
	s := k.volumes[key]
	if s == nil {
		s = &volumeState{device: reconstruct(k.StagingPath(v)), pods: make(map[string]mountState)}
		k.volumes[key] = s
	}
	k.mu.Unlock()

	s.mu.Lock()
	if _, ok := s.pods[podUID]; !ok {
		s.pods[podUID] = reconstruct(k.TargetPath(podUID, v))
	}
	return s
}

// reconstruct is what a kubelet that has just started believes of a path.
func reconstruct(path string) mountState {
	if _, err := os.Lstat(volDataPath(path)); err != nil {
		return mountState{}
	}
	return mountState{is: uncertain, reconstructed: true}
}
