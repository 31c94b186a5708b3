// Package vm runs a program as the first and only one of a stock Debian kernel in a virtual machine.
package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Kernel is an extracted kernel package. Nothing of it is installed.
type Kernel struct {
	Release string // as in "6.1.0-57-amd64"
	Image   string
	modules string // the directory
}

// series is what the kernels of Debian 12 are called. The cloud kernels, whose names have a word
// more, lack soft-RoCE.
var series = regexp.MustCompile(`^linux-image-(6\.1\.([0-9]+)-([0-9]+)-amd64)$`)

// kernelPackage is a package that apt knows.
type kernelPackage struct{ name, release, version string }

// FetchKernel returns the newest kernel of the series, from dir if it is there, else from apt, which
// then leaves it in dir.
func FetchKernel(ctx context.Context, dir string) (*Kernel, error) {
	k, err := fetchKernel(ctx, dir)
	if err == nil || ctx.Err() != nil {
		return k, err
	}
	// Lists that are missing, or so old that their packages are gone.
	if updateErr := command(ctx, "", "apt-get", "--quiet", "update"); updateErr != nil {
		return nil, errors.Join(err, updateErr)
	}
	return fetchKernel(ctx, dir)
}

func fetchKernel(ctx context.Context, dir string) (*Kernel, error) {
	pkg, err := newestKernel(ctx)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	root := filepath.Join(dir, pkg.name+"_"+pkg.version)
	if _, err := os.Stat(root); err != nil {
		if err := pkg.extract(ctx, root); err != nil {
			return nil, err
		}
	}
	return &Kernel{
		Release: pkg.release,
		Image:   filepath.Join(root, "boot", "vmlinuz-"+pkg.release),
		modules: filepath.Join(root, "lib", "modules", pkg.release),
	}, nil
}

func newestKernel(ctx context.Context) (kernelPackage, error) {
	list, err := output(ctx, "apt-cache", "search", "--names-only", `^linux-image-6\.1\.`)
	if err != nil {
		return kernelPackage{}, err
	}
	pkg, err := newest(list)
	if err != nil {
		return pkg, err
	}
	pkg.version, err = version(ctx, pkg.name)
	return pkg, err
}

// newest takes lines of the form "NAME - DESCRIPTION".
func newest(list string) (kernelPackage, error) {
	var found kernelPackage
	var foundPatch, foundABI int
	for line := range strings.Lines(list) {
		name, _, _ := strings.Cut(line, " ")
		m := series.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		patch, _ := strconv.Atoi(m[2]) // digits, as the expression says
		abi, _ := strconv.Atoi(m[3])
		if found.name == "" || patch > foundPatch || patch == foundPatch && abi > foundABI {
			found, foundPatch, foundABI = kernelPackage{name: name, release: m[1]}, patch, abi
		}
	}
	if found.name == "" {
		return found, errors.New("apt knows no package linux-image-6.1.*-amd64; this needs the package sources of Debian 12")
	}
	return found, nil
}

func version(ctx context.Context, name string) (string, error) {
	out, err := output(ctx, "apt-cache", "show", "--no-all-versions", name)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if v, ok := strings.CutPrefix(line, "Version: "); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("apt does not say which version of %s it would take", name)
}

// extract puts the package's files at root, all or nothing.
func (p kernelPackage) extract(ctx context.Context, root string) error {
	if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(root), ".kernel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	fmt.Printf("downloading %s %s\n", p.name, p.version)
	// apt's own user may not write here.
	if err := command(ctx, tmp, "apt-get", "--quiet", "--quiet", "-o", "APT::Sandbox::User=root", "download", p.name+"="+p.version); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get download %s left %d packages, not one", p.name, len(debs))
	}
	files := filepath.Join(tmp, "files")
	if err := command(ctx, "", "dpkg", "--extract", debs[0], files); err != nil {
		return err
	}
	return os.Rename(files, root)
}

// command runs a program in dir, whose output matters only when it fails.
func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return string(out), nil
}
