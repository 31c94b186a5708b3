package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// files reads an archive: the content, or the target of a link, by name.
func files(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := found[h.Name]; twice {
			t.Errorf("%s is there twice", h.Name)
		}
		found[h.Name] = h.Linkname + string(content)
	}
}

// blob is what a descriptor describes.
func blob(t *testing.T, layout map[string]string, d descriptor) string {
	t.Helper()
	content, ok := layout["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
	if !ok {
		t.Fatalf("there is no blob %s", d.Digest)
	}
	sum := sha256.Sum256([]byte(content))
	if hex.EncodeToString(sum[:]) != strings.TrimPrefix(d.Digest, "sha256:") || int64(len(content)) != d.Size {
		t.Errorf("the blob %s has %d bytes and another digest or size", d.Digest, len(content))
	}
	return content
}

func decode(t *testing.T, text string, v any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
}

func write(t *testing.T, images ...Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, images...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func program(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWriteMakesALayoutThatHoldsTogether(t *testing.T) {
	shared := program(t, "shared")
	layout := files(t, write(t,
		Image{
			Name:       "localhost/one:e2e",
			Files:      map[string]string{"usr/bin/one": program(t, "one"), "shared": shared},
			Links:      map[string]string{"bin/alias": "../usr/bin/one"},
			Entrypoint: []string{"/usr/bin/one", "--flag"},
		},
		Image{Name: "localhost/two:e2e", Files: map[string]string{"shared": shared}, Entrypoint: []string{"/shared"}},
	))
	if got := layout["oci-layout"]; got != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("oci-layout is %s", got)
	}
	var top index
	decode(t, layout["index.json"], &top)
	var names []string
	for _, d := range top.Manifests {
		names = append(names, d.Annotations["io.containerd.image.name"])
	}
	if want := []string{"localhost/one:e2e", "localhost/two:e2e"}; !slices.Equal(names, want) {
		t.Fatalf("got the images %q, want %q", names, want)
	}

	var m manifest
	decode(t, blob(t, layout, top.Manifests[0]), &m)
	var c config
	decode(t, blob(t, layout, m.Config), &c)
	entrypoint := []string{"/usr/bin/one", "--flag"}
	if c.OS != "linux" || c.Architecture != runtime.GOARCH || !slices.Equal(c.Config.Entrypoint, entrypoint) {
		t.Errorf("the configuration is %+v", c)
	}
	if len(m.Layers) != 1 || !slices.Equal(c.RootFS.DiffIDs, []string{m.Layers[0].Digest}) {
		t.Fatalf("layers %+v, differences %q", m.Layers, c.RootFS.DiffIDs)
	}
	want := map[string]string{
		"usr/": "", "usr/bin/": "", "usr/bin/one": "one", "shared": "shared", "bin/": "", "bin/alias": "../usr/bin/one",
	}
	got := files(t, []byte(blob(t, layout, m.Layers[0])))
	for name, content := range want {
		if have, ok := got[name]; !ok || have != content {
			t.Errorf("%s is %q, want %q", name, have, content)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the layer has %q", got)
	}
}

func TestWriteMakesFilesExecutable(t *testing.T) {
	layer, err := Image{Files: map[string]string{"bin/x": program(t, "x")}}.layer()
	if err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(bytes.NewReader(layer))
	for _, name := range []string{"bin/", "bin/x"} {
		h, err := r.Next()
		if err != nil || h.Name != name || h.Mode != 0o755 {
			t.Errorf("got %+v, %v, want %s with mode 755", h, err, name)
		}
	}
}

func TestWriteSaysTheSameOfTheSameFiles(t *testing.T) {
	img := Image{
		Name:  "localhost/x:e2e",
		Files: map[string]string{"a/x": program(t, "x"), "b/y": program(t, "y"), "c/z": program(t, "z")},
		Links: map[string]string{"l": "a/x", "m": "b/y"},
	}
	if first, second := write(t, img), write(t, img); !bytes.Equal(first, second) {
		t.Error("two archives differ")
	}
}

func TestWriteNamesTheImageWithoutAFile(t *testing.T) {
	err := Write(io.Discard, Image{Name: "localhost/x:e2e", Files: map[string]string{"x": filepath.Join(t.TempDir(), "none")}})
	if err == nil || !strings.Contains(err.Error(), "localhost/x:e2e") || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
