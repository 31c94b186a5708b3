// Package socket keeps a listening Unix socket at a path that others also touch: kubelet watches
// it, drivers' hooks remove it, and in a surge update two gates want the same one.
//
// A socket is bound under a name that starts with a dot, which kubelet ignores, and renamed into
// place, so that whoever sees it can already connect. It is removed only while the file at the
// path is still the one that was put there.
package socket

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// State says what stands at a Keeper's path.
type State int

const (
	// Missing: nothing is there.
	Missing State = iota
	// Ours: the socket that this Keeper put there.
	Ours
	// Replaced: another file, so another process has taken over.
	Replaced
)

// dotPrefix marks a socket on its way into place. It is short because it counts towards the 107
// bytes of a Unix socket's path.
const dotPrefix = ".gate-"

// maxPath is the longest path that bind(2) takes (sun_path in linux/un.h, less the final NUL).
const maxPath = 107

// Keeper puts a socket at a path, looks after it and takes it away. All methods are safe for
// concurrent use.
type Keeper struct {
	path  string
	serve func(net.Listener) error

	mu       sync.Mutex
	wanted   bool
	listener *net.UnixListener
	file     fs.FileInfo
	err      error
}

// NewKeeper returns a Keeper for path. For each socket put in place, serve runs on a goroutine
// of its own until the listener is closed; until it accepts, connections wait in the backlog.
func NewKeeper(path string, serve func(net.Listener) error) *Keeper {
	return &Keeper{path: path, serve: serve}
}

// CheckPath says in one line why no socket can ever be bound for path, or returns nil.
func CheckPath(path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%q is not an absolute path", path)
	}
	if n := len(dotName(path)); n > maxPath || len(path) > maxPath {
		return fmt.Errorf("%q: the path of a Unix socket can have %d bytes, and %d are needed while it is put in place", path, maxPath, max(n, len(path)))
	}
	return nil
}

// Put places a new socket at the path, over whatever is there.
func (k *Keeper) Put() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.wanted = true
	k.err = k.put()
	return k.err
}

// Tend looks at the path and puts the socket back if somebody has removed it, if it could not be put
// there before, or if what stands there is dead: a successor is left alone as long as it listens.
// The State is what it found, whether or not it has restored the socket since. It does nothing
// before Put and after Remove.
func (k *Keeper) Tend() (found State, restored bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found = k.state()
	dead := found == Replaced && Dead(k.path)
	if found == Ours {
		k.err = nil // the directory, with our socket in it, was away and is back
	}
	if !k.wanted || !dead && found != Missing && k.listener != nil {
		return found, false, k.err
	}
	if dead {
		_ = os.Remove(k.path) // rename would not take the place of a directory
	}
	k.err = k.put()
	return found, k.err == nil, k.err
}

// State says what stands at the path now.
func (k *Keeper) State() State {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state()
}

// Err is the error of the newest attempt to put the socket in place.
func (k *Keeper) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// Remove unlinks the socket if it is still ours, and stops accepting on it. Connections that have
// been accepted live on.
func (k *Keeper) Remove() {
	k.mu.Lock()
	defer k.mu.Unlock()
	// Between the look and the unlink a successor can put its own socket here. It then finds
	// its socket missing and puts it back.
	if k.state() == Ours {
		_ = os.Remove(k.path)
	}
	k.close()
	k.wanted, k.err = false, nil
}

func (k *Keeper) put() error {
	sweep(filepath.Dir(k.path))
	dot := dotName(k.path)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dot, Net: "unix"})
	if err != nil {
		return k.explain(err)
	}
	// Close would otherwise unlink the dot-name, and with it whatever another process has there.
	l.SetUnlinkOnClose(false)
	file, err := install(dot, k.path)
	if err != nil {
		_ = l.Close()
		_ = os.Remove(dot)
		return k.explain(err)
	}
	k.close()
	k.listener, k.file = l, file
	go func() { _ = k.serve(l) }()
	return nil
}

// explain leaves out the dot-name, which is another one at each attempt: the same trouble shall have
// the same text. And it says what is missing from a manifest, if that is what it looks like.
func (k *Keeper) explain(err error) error {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return fmt.Errorf("put socket %s in place: %w", k.path, err)
	}
	advice := ""
	switch dir := filepath.Dir(k.path); errno {
	case syscall.ENOENT:
		advice = fmt.Sprintf("; mount the host's directory at %s", dir)
	case syscall.EROFS:
		advice = fmt.Sprintf("; %s needs a writable mount of its own", dir)
	case syscall.EACCES:
		advice = fmt.Sprintf("; %s is not writable for user %d, run as its owner", dir, os.Geteuid())
	}
	return fmt.Errorf("put socket %s in place: %w%s", k.path, errno, advice)
}

func install(dot, path string) (fs.FileInfo, error) {
	if err := os.Chmod(dot, 0o600); err != nil {
		return nil, err
	}
	file, err := os.Lstat(dot)
	if err != nil {
		return nil, err
	}
	return file, os.Rename(dot, path)
}

func (k *Keeper) state() State {
	switch file, err := os.Lstat(k.path); {
	case errors.Is(err, fs.ErrNotExist):
		return Missing
	// The kernel keeps a bound socket's inode as long as the socket is open, so its number
	// is not given to another file meanwhile.
	case err == nil && k.file != nil && os.SameFile(file, k.file):
		return Ours
	default:
		return Replaced
	}
}

func (k *Keeper) close() {
	if k.listener != nil {
		_ = k.listener.Close()
	}
	k.listener, k.file = nil, nil
}

func dotName(path string) string {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails, see crypto/rand
	return filepath.Join(filepath.Dir(path), dotPrefix+hex.EncodeToString(random[:]))
}

// sweep removes dot-names left by a process that was killed between bind and rename.
func sweep(dir string) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if name := filepath.Join(dir, e.Name()); strings.HasPrefix(e.Name(), dotPrefix) && Dead(name) {
			_ = os.Remove(name)
		}
	}
}

// Dead says that nobody listens at path, although something is there: a socket whose process is gone,
// or no socket at all.
func Dead(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = conn.Close()
		return false
	}
	if _, there := os.Lstat(path); there != nil {
		return false
	}
	for _, dead := range []syscall.Errno{syscall.ECONNREFUSED, syscall.EPROTOTYPE, syscall.ENOENT, syscall.ENOTDIR, syscall.ELOOP} {
		if errors.Is(err, dead) {
			return true
		}
	}
	return false
}
