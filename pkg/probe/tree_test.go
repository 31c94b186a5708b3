package probe

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/tools/txtar"
)

// tree is a file system in memory that can do what a directory on disk cannot: fail with an errno,
// hold device nodes, hang, and count what is asked of it.
type tree struct {
	mu    sync.Mutex
	files map[string]string // contents, in the notation of the cases
	links map[string]string
	dirs  map[string]bool
	hang  map[string]chan struct{}
	asked []string
	// forbidden makes a test fail that touches what it must not.
	forbidden func(name string) bool
	t         testing.TB
}

// newTree takes files as a txtar archive or its part after the header.
func newTree(t testing.TB, archive string) *tree {
	return treeOf(t, txtar.Parse([]byte(archive)).Files)
}

func treeOf(t testing.TB, files []txtar.File) *tree {
	tr := &tree{t: t, files: map[string]string{}, links: map[string]string{}, dirs: map[string]bool{}, hang: map[string]chan struct{}{}}
	for _, f := range files {
		tr.set(f.Name, string(f.Data))
	}
	return tr
}

// set puts a file, a "dir/" or a link ("-> target") into the tree.
func (tr *tree) set(name, content string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for dir := path.Dir(strings.TrimSuffix(name, "/")); dir != "."; dir = path.Dir(dir) {
		tr.dirs[dir] = true
	}
	target, isLink := strings.CutPrefix(content, "-> ")
	switch {
	case strings.HasSuffix(name, "/"):
		tr.dirs[strings.TrimSuffix(name, "/")] = true
	case isLink:
		tr.links[name] = strings.TrimSpace(target)
	default:
		tr.files[name] = content
	}
}

// remove takes away a file or everything below a directory.
func (tr *tree) remove(name string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	below := func(other string) bool { return other == name || strings.HasPrefix(other, name+"/") }
	for f := range tr.files {
		if below(f) {
			delete(tr.files, f)
		}
	}
	for d := range tr.dirs {
		if below(d) {
			delete(tr.dirs, d)
		}
	}
	for l := range tr.links {
		if below(l) {
			delete(tr.links, l)
		}
	}
}

// block makes reads of a name hang until the returned function is called.
func (tr *tree) block(name string) (release func()) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	gate := make(chan struct{})
	tr.hang[name] = gate
	return func() {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		delete(tr.hang, name)
		close(gate)
	}
}

// reset forgets what was asked and returns it.
func (tr *tree) reset() []string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	asked := tr.asked
	tr.asked = nil
	return asked
}

func (tr *tree) ask(op, name string) {
	tr.mu.Lock()
	tr.asked = append(tr.asked, op+" "+name)
	gate := tr.hang[name]
	tr.mu.Unlock()
	if tr.forbidden != nil && tr.forbidden(name) {
		tr.t.Errorf("%s %s: must not be touched", op, name)
	}
	if gate != nil {
		<-gate
	}
}

func (tr *tree) fail(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: "/" + name, Err: err}
}

func (tr *tree) readFile(name string) ([]byte, error) {
	tr.ask("read", name)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	content, ok := tr.files[name]
	if !ok {
		return nil, tr.fail("open", name, syscall.ENOENT)
	}
	content = strings.TrimSuffix(content, "\n")
	if quoted, ok := strings.CutPrefix(content, "!RAW "); ok {
		raw, err := strconv.Unquote(quoted)
		return []byte(raw), err
	}
	if errno := errnoNamed(content); errno != 0 {
		return nil, tr.fail("read", name, errno)
	}
	return []byte(content + "\n"), nil
}

func (tr *tree) readDir(name string) ([]string, error) {
	tr.ask("list", name)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if errno := errnoNamed(tr.files[name]); errno != 0 {
		return nil, tr.fail("open", name, errno)
	}
	if !tr.dirs[name] {
		return nil, tr.fail("open", name, syscall.ENOENT)
	}
	seen := map[string]bool{}
	note := func(other string) {
		if rest, ok := strings.CutPrefix(other, name+"/"); ok {
			first, _, _ := strings.Cut(rest, "/")
			seen[first] = true
		}
	}
	for f := range tr.files {
		note(f)
	}
	for d := range tr.dirs {
		note(d)
	}
	for l := range tr.links {
		note(l)
	}
	// Any order will do, as long as it is the same each time, as the kernel's is.
	names := slices.Sorted(maps.Keys(seen))
	slices.Reverse(names)
	return names, nil
}

func (tr *tree) readlink(name string) (string, error) {
	tr.ask("readlink", name)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if target, ok := tr.links[name]; ok {
		return target, nil
	}
	return "", tr.fail("readlink", name, syscall.EINVAL)
}

func (tr *tree) lstat(name string) (inode, error) {
	tr.ask("lstat", name)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	content, isFile := tr.files[name]
	_, isLink := tr.links[name]
	if !isFile && !isLink && !tr.dirs[name] {
		return inode{}, tr.fail("lstat", name, syscall.ENOENT)
	}
	content = strings.TrimSpace(content)
	if rdev, ok := strings.CutPrefix(content, "!CHR "); ok {
		return charNode(rdev)
	}
	if errnoNamed(content) != 0 && path.Dir(name) == nodeDir {
		// Only the open fails: the node is the one that sysfs names.
		return charNode(strings.TrimSpace(tr.files[path.Join(verbsDir, path.Base(name), "dev")]))
	}
	return inode{}, nil
}

func charNode(rdev string) (inode, error) {
	n := inode{char: true}
	_, err := fmt.Sscanf(rdev, "%d:%d", &n.major, &n.minor)
	return n, err
}

func (tr *tree) open(name string) error {
	tr.ask("open", name)
	tr.mu.Lock()
	defer tr.mu.Unlock()
	content, ok := tr.files[name]
	if !ok {
		return syscall.ENOENT
	}
	if errno := errnoNamed(content); errno != 0 {
		return errno
	}
	return nil
}

// errnoNamed reads "!EINVAL".
func errnoNamed(content string) syscall.Errno {
	switch strings.TrimSpace(content) {
	case "!EINVAL":
		return syscall.EINVAL
	case "!EPERM":
		return syscall.EPERM
	case "!EACCES":
		return syscall.EACCES
	case "!ENXIO":
		return syscall.ENXIO
	case "!EIO":
		return syscall.EIO
	case "!ENODEV":
		return syscall.ENODEV
	case "!EBUSY":
		return syscall.EBUSY
	}
	return 0
}
