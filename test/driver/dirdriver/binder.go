package dirdriver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// A binder makes the directory src appear at dst, an empty directory, and finds out later what
// appears where from the file system alone.
type binder interface {
	kind() string
	bind(src, dst string, readonly bool) error
	// unbind is content when nothing is bound at dst. It leaves the directory.
	unbind(dst string) error
	// at says what is bound at dst.
	at(dst string) (bound, error)
	// users are the places at which src appears, as far as the binder can tell.
	users(src string) ([]string, error)
}

// bound is what a binder found at a path.
type bound struct {
	// any is true when something is bound there.
	any      bool
	readonly bool
	// src is the identity of the directory that is bound.
	src fs.FileInfo
}

// is says whether dir is what is bound.
func (b bound) is(dir string) bool {
	fi, err := os.Stat(dir)
	return err == nil && b.any && b.src != nil && os.SameFile(fi, b.src)
}

// newBinder tries a mount in dir to choose: even root may not mount in many containers.
func newBinder(dir string) (binder, error) {
	probe, err := os.MkdirTemp(dir, ".mount-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(probe)
	switch err := (mounts{}).bind(probe, probe, false); {
	case err == nil:
		return mounts{}, (mounts{}).unbind(probe)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return directories{}, nil
	default:
		return nil, err
	}
}

// mounts binds by bind mounts.
type mounts struct{}

func (mounts) kind() string { return "bind mounts" }

// bind attaches a finished mount, so that a kill leaves either no mount or the right one.
func (mounts) bind(src, dst string, readonly bool) error {
	if !readonly {
		return pathError("bind mount", dst, unix.Mount(src, dst, "", unix.MS_BIND, ""))
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, src, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return pathError("open_tree", src, err)
	}
	defer unix.Close(fd)
	attr := &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return pathError("mount_setattr", src, err)
	}
	return pathError("move_mount", dst, unix.MoveMount(fd, "", unix.AT_FDCWD, dst, unix.MOVE_MOUNT_F_EMPTY_PATH))
}

func (m mounts) unbind(dst string) error {
	for {
		b, err := m.at(dst)
		if err != nil || !b.any {
			return err
		}
		if err := unix.Unmount(dst, unix.UMOUNT_NOFOLLOW); err != nil {
			return pathError("unmount", dst, err)
		}
	}
}

func (mounts) at(dst string) (bound, error) {
	// The kernel lists real paths. A path that is not there has nothing mounted at it.
	path, err := filepath.EvalSymlinks(dst)
	if errors.Is(err, fs.ErrNotExist) {
		return bound{}, nil
	} else if err != nil {
		return bound{}, err
	}
	infos, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil || len(infos) == 0 {
		return bound{}, err
	}
	fi, err := os.Stat(path)
	if err != nil {
		return bound{}, err
	}
	// Of several mounts on one another the last one shows.
	ro := slices.Contains(strings.Split(infos[len(infos)-1].Options, ","), "ro")
	return bound{any: true, readonly: ro, src: fi}, nil
}

func (mounts) users(src string) ([]string, error) {
	want, err := os.Stat(src)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	infos, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	// A mount of the volume ends in the volume's name: asking only such mounts keeps us off other
	// people's file servers.
	suffix := filepath.Join("/", filepath.Base(filepath.Dir(src)), filepath.Base(src))
	var at []string
	for _, i := range infos {
		if !strings.HasSuffix(i.Root, suffix) {
			continue
		}
		if fi, err := os.Stat(i.Mountpoint); err == nil && os.SameFile(fi, want) {
			at = append(at, i.Mountpoint)
		}
	}
	return at, nil
}

// marker is the file by which a plain directory says what it stands for: the path of the volume's
// data, and below it "ro" if it was published read-only.
const marker = ".volume"

// directories pretends: it leaves a marker file at dst.
type directories struct{}

func (directories) kind() string { return "plain directories" }

func (directories) bind(src, dst string, readonly bool) error {
	text := src + "\n"
	if readonly {
		text += "ro\n"
	}
	tmp := filepath.Join(dst, marker+".new")
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dst, marker))
}

func (directories) unbind(dst string) error {
	for _, name := range []string{marker, marker + ".new"} {
		if err := os.Remove(filepath.Join(dst, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (directories) at(dst string) (bound, error) {
	b, err := os.ReadFile(filepath.Join(dst, marker))
	if errors.Is(err, fs.ErrNotExist) {
		return bound{}, nil
	} else if err != nil {
		return bound{}, err
	}
	src, rest, _ := strings.Cut(string(b), "\n")
	// A volume deleted meanwhile leaves src nil: something is bound, but no volume of ours.
	fi, err := os.Stat(src)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return bound{}, err
	}
	return bound{any: true, readonly: rest != "", src: fi}, nil
}

// users knows nothing: nobody keeps a list of the markers.
func (directories) users(string) ([]string, error) { return nil, nil }

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}
