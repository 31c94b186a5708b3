package probe

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"unicode"

	"golang.org/x/sys/unix"
)

// Where the kernel shows RDMA devices, below the root.
const (
	classDir = "sys/class/infiniband"
	verbsDir = "sys/class/infiniband_verbs"
	netDir   = "sys/class/net"
	nodeDir  = "dev/infiniband"
)

// fsys is everything that a probe asks of a file system. Names are slash-separated and relative
// to the root. No method leaves a descriptor open: one held on a device node would keep a driver
// from being reloaded, one held on an attribute would answer ENODEV for ever once the device has
// been re-created.
type fsys interface {
	readFile(name string) ([]byte, error)
	readDir(name string) ([]string, error)
	readlink(name string) (string, error)
	lstat(name string) (inode, error)
	open(name string) error
}

// inode is what tells one device node from another.
type inode struct {
	char         bool
	major, minor uint32
	ino          uint64
}

// rootFS is the file system below a directory. Links in sysfs are relative, so they lead to the
// right place wherever the host's /sys is mounted.
type rootFS string

func (r rootFS) path(name string) string { return filepath.Join(string(r), name) }

// maxAttribute bounds a read: the kernel gives a page at most, a copied tree may give anything.
const maxAttribute = 4096

func (r rootFS) readFile(name string) ([]byte, error) {
	f, err := os.Open(r.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxAttribute))
}

func (r rootFS) readDir(name string) ([]string, error) {
	f, err := os.Open(r.path(name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Readdirnames(-1)
}

func (r rootFS) readlink(name string) (string, error) { return os.Readlink(r.path(name)) }

func (r rootFS) lstat(name string) (inode, error) {
	var st unix.Stat_t
	if err := unix.Lstat(r.path(name), &st); err != nil {
		return inode{}, err
	}
	rdev := uint64(st.Rdev)
	return inode{
		char:  st.Mode&unix.S_IFMT == unix.S_IFCHR,
		major: unix.Major(rdev),
		minor: unix.Minor(rdev),
		ino:   st.Ino,
	}, nil
}

func (r rootFS) open(name string) error {
	fd, err := unix.Open(r.path(name), unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// reader reads through fsys and remembers what it is reading, so that a read that hangs can be
// named by somebody who does not hang.
type reader struct {
	fs  fsys
	now atomic.Pointer[string]
}

// attr is one attribute: its text on one line without blanks around it, or why there is none.
type attr struct {
	text string
	err  error
}

var errEmpty = errors.New("empty")

func (r *reader) attr(elem ...string) attr {
	data, err := r.readFile(path.Join(elem...))
	if err != nil {
		return attr{err: err}
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return attr{err: errEmpty}
	}
	return attr{text: text}
}

// String is the text, or the error where the text would stand.
func (a attr) String() string {
	if a.err != nil {
		return "unreadable: " + errText(a.err)
	}
	return tidy(a.text)
}

func (r *reader) readFile(name string) ([]byte, error) {
	r.now.Store(&name)
	return r.fs.readFile(name)
}

func (r *reader) readDir(name string) ([]string, error) {
	names, err := r.readDirUnsorted(name)
	sortNatural(names)
	return names, err
}

func (r *reader) readDirUnsorted(name string) ([]string, error) {
	r.now.Store(&name)
	return r.fs.readDir(name)
}

func (r *reader) readlink(name string) (string, error) {
	r.now.Store(&name)
	return r.fs.readlink(name)
}

func (r *reader) lstat(name string) (inode, error) {
	r.now.Store(&name)
	return r.fs.lstat(name)
}

func (r *reader) exists(elem ...string) bool {
	_, err := r.lstat(path.Join(elem...))
	return err == nil
}

func (r *reader) open(name string) error {
	r.now.Store(&name)
	return r.fs.open(name)
}

// reading is the path being read, as seen on the host; empty before the first read.
func (r *reader) reading() string {
	if name := r.now.Load(); name != nil {
		return "/" + *name
	}
	return ""
}

func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// isEmptySlot says that an attribute of a GID slot is missing because nothing is in the slot. The
// kernel says EINVAL; a copied tree lacks the file, since it could not be read when it was copied.
func isEmptySlot(err error) bool { return errors.Is(err, syscall.EINVAL) || isAbsent(err) }

// errText leaves out what an error says about the path: the message names the attribute itself.
func errText(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return tidy(err.Error())
}

// tidy makes a raw value fit for a message.
func tidy(text string) string { return oneLine(text, 80) }

// oneLine makes text from outside harmless: one line, no control characters, at most so many
// letters, lest it fill the message that it is put into.
func oneLine(text string, most int) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return -1
	}, strings.ToValidUTF8(text, "")))
	if letters := []rune(text); len(letters) > most {
		return string(letters[:most]) + "…"
	}
	return text
}
