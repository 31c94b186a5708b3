package vm

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
)

// toolPackages have rdma, ibstat and ibv_devinfo and all that they load. A library that is missing
// here is an error that names it.
var toolPackages = []string{
	"iproute2", "libmnl0", "libbsd0", "libmd0", "libcap2",
	"infiniband-diags", "libibmad5", "libibumad3",
	"ibverbs-utils", "libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200",
	"libc6",
}

// FetchTools returns the files, for an initial RAM disk, by which `rdma`, `ibstat` and `ibv_devinfo`
// run in a machine with soft-RoCE, each program where Debian has it. The packages they are from stay
// in dir; nothing is installed.
func FetchTools(ctx context.Context, dir string) ([]File, error) {
	roots, err := withFreshLists(ctx, func() ([]string, error) { return fetch(ctx, dir, toolPackages...) })
	if err != nil {
		return nil, err
	}
	var files []File
	var programs []string
	for _, pattern := range []string{
		"usr/bin/rdma", "usr/sbin/ibstat", "usr/bin/ibv_devinfo",
		// libibverbs loads it by name. The other providers would only take its time.
		"usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav*.so",
	} {
		f, err := packaged(roots, pattern)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		programs = append(programs, f.Source)
	}
	provider, err := packaged(roots, "etc/libibverbs.d/rxe.driver")
	if err != nil {
		return nil, err
	}
	files = append(files, provider)

	found, err := findLibraries(roots)
	if err != nil {
		return nil, err
	}
	needed, err := found.closure(programs...)
	if err != nil {
		return nil, err
	}
	for _, name := range needed {
		dir := "lib/x86_64-linux-gnu"
		if name == loader {
			dir = "lib64"
		}
		files = append(files, File{Path: path.Join(dir, name), Source: found[name]})
	}
	return files, nil
}

// packaged is the one file of the packages that matches the pattern.
func packaged(roots []string, pattern string) (File, error) {
	var files []File
	for _, root := range roots {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return File{}, err
		}
		for _, name := range names {
			inside, err := filepath.Rel(root, name)
			if err != nil {
				return File{}, err
			}
			files = append(files, File{Path: filepath.ToSlash(inside), Source: name})
		}
	}
	if len(files) != 1 {
		return File{}, fmt.Errorf("the packages have %d files %s, not one", len(files), pattern)
	}
	return files[0], nil
}
