package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
)

// The keys of vol_data.json.
const (
	keySpecVolID    = "specVolID"
	keyVolumeHandle = "volumeHandle"
	keyDriverName   = "driverName"
	keyNodeName     = "nodeName"
	keyAttachmentID = "attachmentID"
	keyLifecycle    = "volumeLifecycleMode"
)

// volDataPath is the file in which kubelet notes, beside path, what is mounted there.
func volDataPath(path string) string { return filepath.Join(filepath.Dir(path), "vol_data.json") }

func saveVolData(path string, data map[string]string) error {
	f, err := os.Create(volDataPath(path))
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewEncoder(f).Encode(data)
}

func loadVolData(path string) (map[string]string, error) {
	b, err := os.ReadFile(volDataPath(path))
	if err != nil {
		return nil, err
	}
	data := map[string]string{}
	if err := json.Unmarshal(b, &data); err != nil {
		return nil, fmt.Errorf("%s: %w", volDataPath(path), err)
	}
	return data, nil
}

// removeMountDir removes the directory, vol_data.json and the directory of both, unless something
// is mounted.
func removeMountDir(path string) error {
	mounted, err := mountinfo.Mounted(path)
	if errors.Is(err, fs.ErrNotExist) {
		mounted = false
	} else if err != nil {
		return err
	}
	if mounted {
		return nil
	}
	for _, p := range []string{path, volDataPath(path), filepath.Dir(path)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
