package proxy

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/moby/sys/mountinfo"
)

// mountTable lists the mounts that a filter lets through.
type mountTable func(mountinfo.FilterFunc) ([]*mountinfo.Info, error)

// processMounts is the table of this process's mount namespace. With the propagation that
// CheckPropagation asks for it shows what kubelet sees.
func processMounts(f mountinfo.FilterFunc) ([]*mountinfo.Info, error) { return mountinfo.GetMounts(f) }

// mountPoints says where something is mounted. Who asks while the table is read shares the next read with
// all others who do: with thousands of mounts a read takes tens of milliseconds, and after a restart of
// kubelet every pod's volume is asked for at once. No answer comes from a read that had begun before the
// question. It is safe for concurrent use.
type mountPoints struct {
	table mountTable

	mu   sync.Mutex
	next *mountRead    // the one that has not begun; nil if nobody waits for one
	last chan struct{} // done of the newest; a read begins when the one before it has ended
}

type mountRead struct {
	done chan struct{}
	// To be looked at when done is closed.
	points []string
	err    error
}

// all are the mount points of the next read, which the first who asks makes.
func (m *mountPoints) all() ([]string, error) {
	m.mu.Lock()
	if read := m.next; read != nil {
		m.mu.Unlock()
		<-read.done
		return read.points, read.err
	}
	read, before := &mountRead{done: make(chan struct{})}, m.last
	m.next, m.last = read, read.done
	m.mu.Unlock()
	defer close(read.done)
	if before != nil {
		<-before
	}
	m.mu.Lock()
	m.next = nil
	m.mu.Unlock()
	_, read.err = m.table(func(i *mountinfo.Info) (skip, stop bool) {
		read.points = append(read.points, i.Mountpoint)
		return true, false
	})
	return read.points, read.err
}

// mounted says whether a mount is at or below one of the places.
func (m *mountPoints) mounted(places []string) (bool, error) {
	prefixes := make([]string, 0, 2*len(places))
	for _, place := range places {
		prefixes = append(prefixes, filepath.Clean(place))
		// mountinfo has no symbolic links in it. The last element is left alone: resolving it
		// would touch the mount, and a dead file system would hold us there.
		if dir, err := filepath.EvalSymlinks(filepath.Dir(place)); err == nil {
			prefixes = append(prefixes, filepath.Join(dir, filepath.Base(place)))
		}
	}
	points, err := m.all()
	return err == nil && slices.ContainsFunc(points, func(point string) bool {
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return atOrBelow(point, prefix) })
	}), err
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
