package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// controllersName is a file in the run's directory with the controllers of cgroup v2 that the children
// of the root had before it.
const controllersName = "cgroup-controllers"

// hierarchies are the roots of all cgroup hierarchies that have controllers: several with version 1,
// one with version 2.
func hierarchies() (roots []string, v2 bool, err error) {
	infos, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return nil, false, err
	}
	for _, info := range infos {
		if info.FSType == "cgroup2" {
			v2 = v2 || info.Mountpoint == "/sys/fs/cgroup"
		}
		roots = append(roots, info.Mountpoint)
	}
	return roots, v2, nil
}

// makeCgroup makes the cgroup below which kubelet makes those of pods, with every controller.
func makeCgroup(dir, name string) error {
	roots, v2, err := hierarchies()
	if err != nil {
		return err
	}
	if len(roots) == 0 {
		return errors.New("no cgroups are mounted at /sys/fs/cgroup")
	}
	if v2 {
		if err := enableControllers(dir); err != nil {
			return err
		}
	}
	for _, root := range roots {
		if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// wantedControllers are those that kubelet asks for if the kernel has them.
var wantedControllers = []string{"cpu", "cpuset", "hugetlb", "memory", "pids"}

const (
	rootControllers = "/sys/fs/cgroup/cgroup.controllers"
	rootSubtree     = "/sys/fs/cgroup/cgroup.subtree_control"
)

// enableControllers lets the children of the root have them, which a service manager usually does.
// Kubelet and runc then enable all others.
func enableControllers(dir string) error {
	available, err := words(rootControllers)
	if err != nil {
		return err
	}
	before, err := words(rootSubtree)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, controllersName), []byte(strings.Join(before, " ")), 0o600); err != nil {
		return err
	}
	for _, c := range wantedControllers {
		if !slices.Contains(available, c) || slices.Contains(before, c) {
			continue
		}
		err := os.WriteFile(rootSubtree, []byte("+"+c), 0)
		if errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("%w; there are processes in the root of this container's cgroups: move them to a cgroup of their own", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// restoreControllers disables for the children of the root what they did not have before the run. What
// somebody else has come to use meanwhile stays.
func restoreControllers(dir string) error {
	before, err := words(filepath.Join(dir, controllersName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // version 1
	} else if err != nil {
		return err
	}
	now, err := words(rootSubtree)
	if err != nil {
		return err
	}
	for _, c := range now {
		if slices.Contains(before, c) {
			continue
		}
		if err := os.WriteFile(rootSubtree, []byte("-"+c), 0); err != nil && !errors.Is(err, unix.EBUSY) {
			return err
		}
	}
	return nil
}

func words(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	return strings.Fields(string(b)), err
}

// removeCgroup removes the cgroup of that name, which need not exist, and everything below it.
func removeCgroup(dir, name string) error {
	roots, _, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := removeTree(filepath.Join(root, name)); err != nil {
			return err
		}
	}
	return restoreControllers(dir)
}

// emptyDeadline is how long a cgroup may stay busy after its processes have been killed.
const emptyDeadline = 10 * time.Second

// removeTree removes a cgroup after all those below it.
func removeTree(cgroup string) error {
	entries, err := os.ReadDir(cgroup)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(cgroup, e.Name())); err != nil {
				return err
			}
		}
	}
	for deadline := time.Now().Add(emptyDeadline); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Rmdir(cgroup)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT):
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(deadline):
			return &fs.PathError{Op: "rmdir", Path: cgroup, Err: err}
		}
	}
}
