package proxy

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// attempt is one vol_data.json of kubelet's. It is written before the call to the driver and
// removed after the undoing one, so it proves that kubelet has begun with a volume, not that
// there is a mount.
type attempt struct {
	driver, volume string
	// paths are where the volume's mount or device would be: one, except for raw block.
	paths     []string
	published bool
	block     bool
	// unreadable: the file is there, but what it says is not known.
	unreadable bool
}

// live says whether the attempt may have left something on the node. For raw block kubelet writes
// the file even for a pod that only waits, so there the path has to exist.
func (a *attempt) live() bool {
	if !a.block {
		return true
	}
	for _, path := range a.paths {
		if _, err := os.Lstat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// listAttempts finds every vol_data.json below kubelet's root, in the three places that kubelet's
// pkg/volume/csi uses (csi_attacher.go, csi_mounter.go, csi_block.go of k8s.io/kubernetes v1.34).
// An error means that the list may be incomplete.
func listAttempts(kubeletDir string) ([]attempt, error) {
	var (
		found []attempt
		errs  []error
		csi   = filepath.Join(kubeletDir, "plugins", "kubernetes.io", "csi")
		block = filepath.Join(csi, "volumeDevices")
		add   = func(dir string, a attempt) {
			if a.read(filepath.Join(dir, "vol_data.json")) {
				found = append(found, a)
			}
		}
	)
	for _, driver := range list(csi, &errs) {
		if driver == "volumeDevices" {
			continue
		}
		for _, hash := range list(filepath.Join(csi, driver), &errs) {
			dir := filepath.Join(csi, driver, hash)
			add(dir, attempt{paths: []string{filepath.Join(dir, "globalmount")}})
		}
	}
	for _, pod := range list(filepath.Join(kubeletDir, "pods"), &errs) {
		volumes := filepath.Join(kubeletDir, "pods", pod, "volumes", "kubernetes.io~csi")
		for _, name := range list(volumes, &errs) {
			dir := filepath.Join(volumes, name)
			add(dir, attempt{paths: []string{filepath.Join(dir, "mount")}, published: true})
		}
	}
	for _, name := range list(block, &errs) {
		if name == "staging" || name == "publish" {
			continue
		}
		paths := []string{filepath.Join(block, "staging", name)}
		for _, pod := range list(filepath.Join(block, "publish", name), &errs) {
			paths = append(paths, filepath.Join(block, "publish", name, pod))
		}
		add(filepath.Join(block, name, "data"), attempt{paths: paths, block: true})
	}
	return found, errors.Join(errs...)
}

// read fills in what the file says and returns whether there is one.
func (a *attempt) read(file string) bool {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return false
	}
	var content struct {
		DriverName   string `json:"driverName"`
		VolumeHandle string `json:"volumeHandle"`
	}
	if err == nil {
		err = json.Unmarshal(data, &content)
	}
	a.driver, a.volume = content.DriverName, content.VolumeHandle
	a.unreadable = err != nil || a.driver == "" || a.volume == ""
	return true
}

// list returns the names in a directory. One that is not there is empty.
func list(dir string, errs *[]error) []string {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		*errs = append(*errs, err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}
