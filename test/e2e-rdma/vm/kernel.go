// Package vm runs a program as the first and only one of a stock Debian kernel in a virtual machine.
package vm

import (
	"context"
	"errors"
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
type kernelPackage struct{ name, release string }

// FetchKernel returns the newest kernel of the series, from dir if it is there, else from apt, which
// then leaves it in dir.
func FetchKernel(ctx context.Context, dir string) (*Kernel, error) {
	return withFreshLists(ctx, func() (*Kernel, error) {
		pkg, err := newestKernel(ctx)
		if err != nil {
			return nil, err
		}
		roots, err := fetch(ctx, dir, pkg.name)
		if err != nil {
			return nil, err
		}
		return &Kernel{
			Release: pkg.release,
			Image:   filepath.Join(roots[0], "boot", "vmlinuz-"+pkg.release),
			modules: filepath.Join(roots[0], "lib", "modules", pkg.release),
		}, nil
	})
}

func newestKernel(ctx context.Context) (kernelPackage, error) {
	list, err := output(ctx, "apt-cache", "search", "--names-only", `^linux-image-6\.1\.`)
	if err != nil {
		return kernelPackage{}, err
	}
	return newest(list)
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
