package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
)

// Footprint is what a node could leave on a machine: mounts, cgroups, links, sysctls, processes and
// files, each by a name and, where it matters, with a value.
type Footprint map[string]string

// TakeFootprint looks at the machine. What cannot be read is no part of it.
func TakeFootprint() Footprint {
	f := make(Footprint)
	f.addMounts()
	f.addCgroups()
	f.addLinks()
	f.addSysctls()
	f.addProcesses()
	f.addFiles()
	return f
}

// settleDeadline is how long something may take to go, and other people's things to come and go.
const settleDeadline = 15 * time.Second

// Compare returns an error that names what is on the machine now and was not in f, or the other way
// round, or with another value. run is the one that has ended since; what others have is theirs.
func (f Footprint) Compare(ctx context.Context, run string) error {
	return Eventually(context.WithoutCancel(ctx), settleDeadline, "the machine is as before", func() error {
		if differences := f.differences(TakeFootprint(), run); len(differences) > 0 {
			return errors.New(strings.Join(differences, "; "))
		}
		return nil
	})
}

func (f Footprint) differences(now Footprint, run string) []string {
	// Names that a comparison cannot be about.
	others := func(name string) bool {
		return strings.Contains(name, runPrefix) && (run == "" || !strings.Contains(name, run))
	}
	f, now = maps.Clone(f), maps.Clone(now)
	for _, footprint := range []Footprint{f, now} {
		maps.DeleteFunc(footprint, func(name, _ string) bool { return others(name) })
	}
	var differences []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if value, ok := f[name]; !ok {
			differences = append(differences, "left: "+name)
		} else if value != now[name] {
			differences = append(differences, fmt.Sprintf("changed: %s from %q to %q", name, value, now[name]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if _, ok := now[name]; !ok {
			differences = append(differences, "gone: "+name)
		}
	}
	return differences
}

// mountTrees are where a node mounts. Elsewhere others may.
var mountTrees = []string{"/proc", "/run", "/sys", "/usr", "/var"}

func (f Footprint) addMounts() {
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return
	}
	for _, i := range infos {
		ours := strings.Contains(i.Mountpoint, runPrefix)
		for _, tree := range mountTrees {
			ours = ours || i.Mountpoint == tree || strings.HasPrefix(i.Mountpoint, tree+"/")
		}
		if ours {
			f[fmt.Sprintf("mount %s of %s", i.Mountpoint, i.FSType)] = ""
		}
	}
}

// cgroupNames begin the names of the cgroups that kubelet, containerd and runc make where nobody tells
// them otherwise, and of the run's own. Others on the machine may have cgroups as well.
var cgroupNames = []string{"kube", "containerd", "cri-containerd", "k8s.io", "default", runPrefix}

func (f Footprint) addCgroups() {
	roots, _, err := hierarchies()
	if err != nil {
		return
	}
	for _, root := range roots {
		entries, _ := os.ReadDir(root)
		for _, e := range entries {
			ours := func(name string) bool { return strings.HasPrefix(e.Name(), name) }
			if e.IsDir() && slices.ContainsFunc(cgroupNames, ours) {
				f["cgroup "+filepath.Join(root, e.Name())] = ""
			}
		}
		if b, err := os.ReadFile(filepath.Join(root, "cgroup.subtree_control")); err == nil {
			f["controllers of "+root] = string(b)
		}
	}
}

func (f Footprint) addLinks() {
	entries, _ := os.ReadDir("/sys/class/net")
	for _, e := range entries {
		f["link "+e.Name()] = ""
	}
}

func (f Footprint) addSysctls() {
	names := slices.Collect(maps.Keys(sysctls))
	names = append(names, "kernel/hostname", "kernel/domainname", "kernel/core_pattern", "net/ipv4/ip_forward",
		"net/ipv4/conf/all/route_localnet", "net/ipv4/ip_local_port_range", "fs/inotify/max_user_watches",
		"fs/inotify/max_user_instances", "fs/file-max", "vm/max_map_count", "vm/swappiness")
	for _, name := range names {
		if b, err := os.ReadFile(filepath.Join("/proc/sys", name)); err == nil {
			f["sysctl "+name] = string(b)
		}
	}
}

// addProcesses knows those of a node by the run's directory in their arguments; of the others Close
// knows.
func (f Footprint) addProcesses() {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil {
			continue
		}
		if text := strings.ReplaceAll(string(args), "\x00", " "); strings.Contains(text, runPrefix) {
			f[fmt.Sprintf("process %s: %s", filepath.Base(dir), text)] = ""
		}
	}
}

// addFiles looks where Kubernetes and containerd put files by default, and where runs have theirs.
func (f Footprint) addFiles() {
	paths := []string{
		KubeletDir, "/var/lib/containerd", "/var/lib/cni", "/var/lib/etcd", "/run/containerd", "/run/hardware",
		"/run/kubernetes", "/run/flannel", "/var/run/kubernetes", "/var/log/pods", "/var/log/containers", "/etc/cni",
		"/etc/kubernetes", "/etc/containerd", "/opt/cni", "/opt/containerd", "/opt/nri", "/usr/libexec/kubernetes",
		filepath.Join(os.Getenv("HOME"), ".kube"),
	}
	runs, _ := filepath.Glob(filepath.Join(os.TempDir(), "*"+runPrefix+"*"))
	for _, path := range append(paths, runs...) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			f["file "+path] = ""
		}
	}
}
