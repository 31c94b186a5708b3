// Package image_test builds the image with buildah, looks at what is in it, and runs it with runc as the examples have
// it. It needs root and the Debian packages buildah, busybox-static and runc, and fails without them.
package image_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/image/buildah"
)

// What the builds are told.
const (
	version = "v0.0.0-test"
	commit  = "0123456789abcdef0123456789abcdef01234567"
)

// image is one that was built, and its root file system.
type image struct {
	arch, base string
	rootfs     string
	about      *imagespec.Image
}

// The images: for this machine's processor on nothing, and for the other one on a base.
var native, foreign image

// workDir is on one file system with everything that is made here.
var workDir string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	var err error
	if workDir, err = os.MkdirTemp("", "image-"); err == nil {
		defer os.RemoveAll(workDir)
		err = buildImages(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the images cannot be built:", err)
		return 1
	}
	return m.Run()
}

func buildImages(ctx context.Context) (err error) {
	store, err := buildah.NewStore(workDir)
	if err != nil {
		return err
	}
	defer store.Close()
	builder, err := makeBuilder(ctx, store)
	if err != nil {
		return err
	}
	arch, err := goEnv(ctx, "GOARCH")
	if err != nil {
		return err
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[arch]
	if err := makeBase(ctx, store, other); err != nil {
		return err
	}
	native, foreign = image{arch: arch}, image{arch: other, base: baseName}
	for _, i := range []*image{&native, &foreign} {
		name := "localhost/gate:" + i.arch
		settings := append(builder, "IMAGE="+name, "VERSION="+version, "COMMIT="+commit, "PLATFORM=linux/"+i.arch)
		if i.base != "" {
			settings = append(settings, "BASE="+i.base)
		}
		if err := makeImage(ctx, settings); err != nil {
			return err
		}
		i.rootfs = filepath.Join(workDir, i.arch)
		if err := store.Extract(ctx, name, i.rootfs); err != nil {
			return err
		}
		if i.about, err = store.Inspect(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// makeImage is what people do.
func makeImage(ctx context.Context, settings []string) error {
	_, err := buildah.Output(exec.CommandContext(ctx, "make", append([]string{"-C", "../..", "image"}, settings...)...))
	return err
}

// makeBuilder makes an image to compile in, and returns the settings of `make image` that use it. The Go installation and
// its caches are this machine's, so nothing has to be fetched twice.
func makeBuilder(ctx context.Context, store *buildah.Store) ([]string, error) {
	const name = "localhost/go"
	dir := filepath.Join(workDir, "builder")
	for _, d := range []string{"bin", "etc", "root", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	if _, err := buildah.Output(exec.CommandContext(ctx, "cp", "/bin/busybox", filepath.Join(dir, "bin"))); err != nil {
		return nil, err
	}
	for _, applet := range []string{"sh", "ln"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			return nil, err
		}
	}
	if err := os.CopyFS(filepath.Join(dir, "etc/ssl"), os.DirFS("/etc/ssl")); err != nil {
		return nil, err
	}
	if err := store.Commit(ctx, name, dir, "--env=PATH=/usr/local/go/bin:/bin", "--env=HOME=/root"); err != nil {
		return nil, err
	}
	flags := []string{"--isolation=chroot"}
	for variable, at := range map[string]string{"GOROOT": "/usr/local/go:ro", "GOMODCACHE": "/root/go/pkg/mod", "GOCACHE": "/root/.cache/go-build"} {
		from, err := goEnv(ctx, variable)
		if err != nil {
			return nil, err
		}
		flags = append(flags, "--volume="+from+":"+at)
	}
	return []string{
		"BUILDER=" + strings.Join(store.Command(), " "),
		"BUILDER_FLAGS=" + strings.Join(flags, " "),
		"GO_IMAGE=" + name,
	}, nil
}

// baseName is a base image, and baseFile all that is in it.
const (
	baseName = "localhost/base"
	baseFile = "etc/os-release"
)

func makeBase(ctx context.Context, store *buildah.Store, arch string) error {
	file := filepath.Join(workDir, "base", baseFile)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte("ID=base\n"), 0o644); err != nil {
		return err
	}
	return store.Commit(ctx, baseName, filepath.Join(workDir, "base"), "--arch="+arch)
}

func goEnv(ctx context.Context, name string) (string, error) {
	return buildah.Output(exec.CommandContext(ctx, "go", "env", name))
}

func TestNothingIsInTheImageButWhatIsListed(t *testing.T) {
	ours := []string{"csi-node-driver-registrar -> csi-rdma-gate", "csi-rdma-gate -rwxr-xr-x"}
	for _, i := range []image{native, foreign} {
		want := ours
		if i.base != "" {
			want = append(slices.Clone(ours), "etc drwxr-xr-x", baseFile+" -rw-r--r--")
		}
		if got := list(t, i.rootfs); !slices.Equal(got, want) {
			t.Errorf("%s on %q: it has %q, not %q", i.arch, i.base, got, want)
		}
	}
}

// list is every path with its mode or target, in order.
func list(t *testing.T, root string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if e.Type() == fs.ModeSymlink {
			target, err := os.Readlink(path)
			all = append(all, rel+" -> "+target)
			return err
		}
		all = append(all, rel+" "+info.Mode().String())
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTheBinaryIsStaticAndSaysWhereItIsFrom(t *testing.T) {
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, i := range []image{native, foreign} {
		binary := filepath.Join(i.rootfs, "csi-rdma-gate")
		file, err := elf.Open(binary)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if file.Machine != machines[i.arch] {
			t.Errorf("%s: it is for %s", i.arch, file.Machine)
		}
		for _, p := range file.Progs {
			if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
				t.Errorf("%s: it is linked dynamically", i.arch)
			}
		}
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		for key, want := range map[string]string{"CGO_ENABLED": "0", "GOARCH": i.arch, "GOOS": "linux", "-trimpath": "true"} {
			if settings[key] != want {
				t.Errorf("%s: %s is %q", i.arch, key, settings[key])
			}
		}
	}
	for _, name := range []string{"csi-rdma-gate", "csi-node-driver-registrar"} {
		said, err := buildah.Output(exec.Command(filepath.Join(native.rootfs, name), "--version"))
		if want := fmt.Sprintf("csi-rdma-gate %s (commit %s)", version, commit); err != nil || said != want {
			t.Errorf("%s --version: %q, %v; want %q", name, said, err, want)
		}
	}
}

// Built in another directory, by other means, it is the same to the byte.
func TestTheBinaryIsReproducible(t *testing.T) {
	for _, i := range []image{native, foreign} {
		again := filepath.Join(t.TempDir(), "csi-rdma-gate")
		cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false",
			"-ldflags", fmt.Sprintf("-s -w -X main.version=%s -X main.commit=%s", version, commit), "-o", again, "./cmd/csi-rdma-gate")
		cmd.Dir = "../.."
		cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+i.arch)
		if _, err := buildah.Output(cmd); err != nil {
			t.Fatal(err)
		}
		if sum(t, again) != sum(t, filepath.Join(i.rootfs, "csi-rdma-gate")) {
			t.Errorf("%s: two builds differ", i.arch)
		}
	}
}

func sum(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(data)
}

func TestTheImageSaysWhatItIs(t *testing.T) {
	for _, i := range []image{native, foreign} {
		if i.about.Architecture != i.arch || i.about.OS != "linux" {
			t.Errorf("%s: it is for %s/%s", i.arch, i.about.OS, i.about.Architecture)
		}
		if c := i.about.Config; c.User != "0:0" || !slices.Equal(c.Entrypoint, []string{"/csi-rdma-gate"}) || len(c.Cmd) > 0 {
			t.Errorf("%s: user %q, entrypoint %q, command %q", i.arch, c.User, c.Entrypoint, c.Cmd)
		}
		for label, want := range map[string]string{
			imagespec.AnnotationTitle:         "csi-rdma-gate",
			imagespec.AnnotationLicenses:      "Apache-2.0",
			imagespec.AnnotationVersion:       version,
			imagespec.AnnotationRevision:      commit,
			imagespec.AnnotationBaseImageName: cmp.Or(i.base, "scratch"),
		} {
			if got := i.about.Config.Labels[label]; got != want {
				t.Errorf("%s: label %s is %q, not %q", i.arch, label, got, want)
			}
		}
	}
}
