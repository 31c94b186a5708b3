package dirdriver

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// nameMax is the longest file name.
const nameMax = 255

// volumes are the directories under dir, one for each volume:
//
//	<id>/data      what the volume holds
//	<id>/volume.json
type volumes struct{ dir string }

// volume is what volume.json says.
type volume struct {
	ID       string `json:"id"`
	Capacity int64  `json:"capacity"`
}

// path is where the volume is or would be: the id with everything escaped that a file name cannot
// hold, a leading dot included, or a digest of an id that is too long.
func (v volumes) path(id string) string {
	name := url.PathEscape(id)
	if strings.HasPrefix(name, ".") {
		name = "%2E" + name[1:]
	}
	if len(name) > nameMax {
		name = fmt.Sprintf("%%%x", sha256.Sum256([]byte(id)))
	}
	return filepath.Join(v.dir, name)
}

func (v volumes) data(id string) string { return filepath.Join(v.path(id), "data") }

// get returns fs.ErrNotExist for a volume that does not exist.
func (v volumes) get(id string) (volume, error) {
	var vol volume
	b, err := os.ReadFile(filepath.Join(v.path(id), "volume.json"))
	if err != nil {
		return vol, err
	}
	return vol, json.Unmarshal(b, &vol)
}

// create makes the volume in one step: it is there wholly or not at all, also after a kill.
func (v volumes) create(vol volume) error {
	tmp, err := os.MkdirTemp(v.dir, ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	b, err := json.Marshal(vol)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(tmp, "volume.json"), b, 0o600); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(tmp, "data"), 0o750); err != nil {
		return err
	}
	return os.Rename(tmp, v.path(vol.ID))
}

// ensure creates the volume unless it exists.
func (v volumes) ensure(id string) error {
	_, err := v.get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return v.create(volume{ID: id})
	}
	return err
}

// remove deletes the volume, description first, so that what a kill leaves behind is no volume.
func (v volumes) remove(id string) error {
	err := os.Remove(filepath.Join(v.path(id), "volume.json"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(v.path(id))
}
