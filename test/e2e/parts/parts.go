// Package parts gets what a Kubernetes node is made of, and keeps it in a cache: the Kubernetes
// programs are built from their modules, the rest comes from Debian packages, of which nothing is
// installed, or from modules too.
package parts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Release is a Kubernetes version that a node can be made of.
type Release struct {
	// Version is that of k8s.io/kubernetes, without the v.
	Version string
	// Runtime is true if containerd and etcd are built too, since Debian's are too old for it.
	Runtime bool
	// Features are those that are switched on, since they are off by default.
	Features []string
}

// StorageHealth is the feature by which kubelet asks drivers how their storage is and puts the answers
// into CSINode's status.
const StorageHealth = "CSIVolumeHealth"

// Releases are all of them, the oldest first.
func Releases() []Release {
	return []Release{
		{Version: "1.34.3"},
		{Version: "1.36.3", Runtime: true},
		{Version: "1.37.2", Runtime: true, Features: []string{StorageHealth}},
	}
}

// Pick returns the releases that a comma-separated list names.
func Pick(list string) ([]Release, error) {
	var picked []Release
	for version := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(Releases(), func(r Release) bool { return r.Version == strings.TrimSpace(version) })
		if i < 0 {
			return nil, fmt.Errorf("no Kubernetes %q; there are %s", version, Versions(Releases()))
		}
		picked = append(picked, Releases()[i])
	}
	return picked, nil
}

// Versions is the list that Pick takes.
func Versions(releases []Release) string {
	var versions []string
	for _, r := range releases {
		versions = append(versions, r.Version)
	}
	return strings.Join(versions, ",")
}

// module is the directory, below that of this module, whose go.mod has the release.
func (r Release) module() string {
	minor := r.Version[:strings.LastIndexByte(r.Version, '.')]
	return "kubernetes-" + minor
}

// Parts are a release's programs by name.
type Parts struct {
	Release  Release
	programs map[string]string
}

// Path is where the program is.
func (p *Parts) Path(program string) string {
	path, ok := p.programs[program]
	if !ok {
		panic("no part is called " + program)
	}
	return path
}

// Dirs are the directories of all programs, for a PATH.
func (p *Parts) Dirs() []string {
	var dirs []string
	for _, path := range p.programs {
		dirs = append(dirs, filepath.Dir(path))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// kubernetesPrograms are built from the release's own module, with kubectl for the user's part.
var kubernetesPrograms = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet"}

// Get returns the release's parts. source is the directory of this module, cache what is kept from
// run to run. What is there already is not made again.
func Get(ctx context.Context, r Release, source, cache string) (*Parts, error) {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return nil, err
	}
	unlock, err := lock(ctx, cache)
	if err != nil {
		return nil, err
	}
	defer unlock()
	p := &Parts{Release: r, programs: make(map[string]string)}
	packages := []string{"busybox-static", "runc"}
	if r.Runtime {
		dir := filepath.Join(cache, "runtime")
		if err := build(ctx, filepath.Join(source, "runtime"), dir, ""); err != nil {
			return nil, err
		}
		err = p.add(dir, map[string]string{
			"containerd": "containerd", "containerd-shim-runc-v2": "containerd-shim-runc-v2", "ctr": "ctr", "etcd": "server",
		})
		if err != nil {
			return nil, err
		}
	} else {
		packages = append(packages, "containerd", "etcd-server")
	}
	if err := p.addPackages(ctx, filepath.Join(cache, "debian"), packages); err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, r.Version)
	if err := build(ctx, filepath.Join(source, r.module()), dir, versionFlags(r.Version)); err != nil {
		return nil, err
	}
	for _, program := range kubernetesPrograms {
		if err := p.add(dir, map[string]string{program: program}); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// versionFlags tell Kubernetes programs which version they are, as its own build does.
func versionFlags(version string) string {
	return fmt.Sprintf("-X k8s.io/component-base/version.gitVersion=v%s -X k8s.io/client-go/pkg/version.gitVersion=v%[1]s", version)
}

// add takes programs by their names in dir.
func (p *Parts) add(dir string, files map[string]string) error {
	for program, file := range files {
		path := filepath.Join(dir, file)
		if fi, err := os.Stat(path); err != nil {
			return err
		} else if fi.Mode()&0o111 == 0 {
			return fmt.Errorf("%s is not executable", path)
		}
		p.programs[program] = path
	}
	return nil
}

// packagePrograms are where each package has what is taken from it.
var packagePrograms = map[string]map[string]string{
	"busybox-static": {"busybox": "bin/busybox"},
	"containerd": {
		"containerd": "usr/bin/containerd", "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2", "ctr": "usr/bin/ctr",
	},
	"etcd-server": {"etcd": "usr/bin/etcd"},
	"runc":        {"runc": "usr/sbin/runc"},
}

func (p *Parts) addPackages(ctx context.Context, dir string, names []string) error {
	for _, name := range names {
		root, err := fetch(ctx, dir, name)
		if err != nil {
			return err
		}
		if err := p.add(root, packagePrograms[name]); err != nil {
			return err
		}
	}
	return nil
}
