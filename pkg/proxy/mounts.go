package proxy

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// mountTable lists the mounts that a filter lets through.
type mountTable func(mountinfo.FilterFunc) ([]*mountinfo.Info, error)

// processMounts is the table of this process's mount namespace. With the propagation that
// CheckPropagation asks for it shows what kubelet sees.
func processMounts(f mountinfo.FilterFunc) ([]*mountinfo.Info, error) { return mountinfo.GetMounts(f) }

// mounted says whether a mount is at or below one of the places.
func mounted(places []string) (bool, error) { return mountedIn(processMounts, places) }

func mountedIn(table mountTable, places []string) (bool, error) {
	prefixes := make([]string, 0, 2*len(places))
	for _, place := range places {
		prefixes = append(prefixes, filepath.Clean(place))
		// mountinfo has no symbolic links in it. The last element is left alone: resolving it
		// would touch the mount, and a dead file system would hold us there.
		if dir, err := filepath.EvalSymlinks(filepath.Dir(place)); err == nil {
			prefixes = append(prefixes, filepath.Join(dir, filepath.Base(place)))
		}
	}
	found, err := table(func(m *mountinfo.Info) (skip, stop bool) {
		for _, prefix := range prefixes {
			if atOrBelow(m.Mountpoint, prefix) {
				return false, true
			}
		}
		return true, false
	})
	return len(found) > 0, err
}

func atOrBelow(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// CheckPropagation says in one line why mounts that the driver makes below dir would not be seen
// from here: dir, or a parent other than /, is a private mount. It returns nil when they are seen.
func CheckPropagation(dir string) error { return checkPropagation(processMounts, dir) }

func checkPropagation(table mountTable, dir string) error {
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	above, err := table(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint == "/" || !atOrBelow(resolved, m.Mountpoint), false
	})
	if err != nil {
		return err
	}
	private := map[string]bool{}
	for _, m := range above { // of several at one place the last one counts: it hides the others
		private[m.Mountpoint] = !strings.Contains(m.Optional, "shared:") && !strings.Contains(m.Optional, "master:")
	}
	for place, yes := range private {
		if yes {
			return fmt.Errorf("%s is a private mount, so the mounts of other containers below %s stay invisible here; mount it with mountPropagation: HostToContainer", place, dir)
		}
	}
	return nil
}
