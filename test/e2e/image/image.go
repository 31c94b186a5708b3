// Package image makes container images out of static binaries, as an OCI image layout in a tar
// archive (https://github.com/opencontainers/image-spec), which `ctr images import` takes. There is
// no registry and no container engine in it.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"slices"
)

// Image is one layer with some executables.
type Image struct {
	// Name is the full reference, such as localhost/gate:e2e.
	Name string
	// Files are the executables' paths in the image and where they come from.
	Files map[string]string
	// Links are symbolic links in the image and what they point to.
	Links map[string]string
	// Entrypoint is the command.
	Entrypoint []string
}

// The media types of the parts.
const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type config struct {
	Architecture string       `json:"architecture"`
	OS           string       `json:"os"`
	Config       configConfig `json:"config"`
	RootFS       rootFS       `json:"rootfs"`
}

type configConfig struct {
	Entrypoint []string `json:"Entrypoint"`
	Env        []string `json:"Env"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// Write writes the images as one archive. The same files give the same bytes.
func Write(w io.Writer, images ...Image) error {
	a := &archive{tar: tar.NewWriter(w), blobs: make(map[string]bool)}
	top := index{SchemaVersion: 2, MediaType: indexType}
	for _, img := range images {
		d, err := a.image(img)
		if err != nil {
			return fmt.Errorf("image %s: %w", img.Name, err)
		}
		top.Manifests = append(top.Manifests, d)
	}
	text, err := json.Marshal(top)
	if err != nil {
		return err
	}
	if err := a.file("index.json", text); err != nil {
		return err
	}
	if err := a.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	return a.tar.Close()
}

// archive is an image layout that is being written.
type archive struct {
	tar   *tar.Writer
	blobs map[string]bool
}

// image returns the descriptor of the image's manifest.
func (a *archive) image(img Image) (descriptor, error) {
	content, err := img.layer()
	if err != nil {
		return descriptor{}, err
	}
	layer, err := a.blob(layerType, content)
	if err != nil {
		return descriptor{}, err
	}
	cfg, err := a.json(configType, config{
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Config:       configConfig{Entrypoint: img.Entrypoint, Env: []string{"PATH=/bin"}},
		// The layer is not compressed, so its digest is that of the difference too.
		RootFS: rootFS{Type: "layers", DiffIDs: []string{layer.Digest}},
	})
	if err != nil {
		return descriptor{}, err
	}
	d, err := a.json(manifestType, manifest{
		SchemaVersion: 2, MediaType: manifestType, Config: cfg, Layers: []descriptor{layer},
	})
	// Containerd takes the image's name from here.
	d.Annotations = map[string]string{"io.containerd.image.name": img.Name}
	return d, err
}

func (a *archive) json(mediaType string, v any) (descriptor, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return a.blob(mediaType, text)
}

func (a *archive) blob(mediaType string, content []byte) (descriptor, error) {
	sum := sha256.Sum256(content)
	name := hex.EncodeToString(sum[:])
	d := descriptor{MediaType: mediaType, Digest: "sha256:" + name, Size: int64(len(content))}
	if a.blobs[name] {
		return d, nil
	}
	a.blobs[name] = true
	return d, a.file(path.Join("blobs/sha256", name), content)
}

func (a *archive) file(name string, content []byte) error {
	return writeFile(a.tar, name, 0o644, content)
}

// layer is a tar archive with the image's files and the directories they are in.
func (img Image) layer() ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	dirs := map[string]bool{".": true}
	for _, name := range sorted(img.Files) {
		if err := writeParents(w, dirs, name); err != nil {
			return nil, err
		}
		content, err := os.ReadFile(img.Files[name])
		if err != nil {
			return nil, err
		}
		if err := writeFile(w, name, 0o755, content); err != nil {
			return nil, err
		}
	}
	for _, name := range sorted(img.Links) {
		if err := writeParents(w, dirs, name); err != nil {
			return nil, err
		}
		h := &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: img.Links[name], Mode: 0o777}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}

func writeParents(w *tar.Writer, dirs map[string]bool, name string) error {
	dir := path.Dir(name)
	if dirs[dir] {
		return nil
	}
	dirs[dir] = true
	if err := writeParents(w, dirs, dir); err != nil {
		return err
	}
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755})
}

func writeFile(w *tar.Writer, name string, mode int64, content []byte) error {
	h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content))}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

func sorted(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
