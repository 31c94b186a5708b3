package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
)

// File is a file of an initial RAM disk. All are executable and belong to root.
type File struct {
	Path   string // in the archive, relative
	Source string
}

// WriteInitrd writes files, and the directories that they are in, as an uncompressed cpio archive:
// under emulation unpacking costs more than loading.
func WriteInitrd(name string, files []File) (err error) {
	out, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	buffered := bufio.NewWriter(out)
	w := &cpioWriter{w: buffered, dirs: map[string]bool{".": true}}
	for _, f := range files {
		if err := w.file(f); err != nil {
			return fmt.Errorf("initrd: %w", err)
		}
	}
	if err := w.header("TRAILER!!!", 0, 0); err != nil {
		return err
	}
	return buffered.Flush()
}

const (
	modeDir  = 0o040755
	modeFile = 0o100755
)

// cpioWriter writes the "newc" format of Linux's initramfs: a header of hexadecimal numbers, the
// name and the content, each padded to 4 bytes.
type cpioWriter struct {
	w       io.Writer
	written int64
	inode   int
	dirs    map[string]bool
}

func (c *cpioWriter) file(f File) error {
	if err := c.parents(path.Dir(f.Path)); err != nil {
		return err
	}
	in, err := os.Open(f.Source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if err := c.header(f.Path, modeFile, info.Size()); err != nil {
		return err
	}
	if _, err := io.CopyN(c, in, info.Size()); err != nil {
		return fmt.Errorf("%s: %w", f.Source, err)
	}
	return c.pad()
}

func (c *cpioWriter) parents(dir string) error {
	if c.dirs[dir] {
		return nil
	}
	c.dirs[dir] = true
	if err := c.parents(path.Dir(dir)); err != nil {
		return err
	}
	return c.header(dir, modeDir, 0)
}

func (c *cpioWriter) header(name string, mode int, size int64) error {
	c.inode++
	const owner, group, links, modified = 0, 0, 1, 0
	const deviceMajor, deviceMinor, nodeMajor, nodeMinor, checksum = 0, 0, 0, 0, 0
	_, err := fmt.Fprintf(c, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, mode, owner, group, links, modified, size,
		deviceMajor, deviceMinor, nodeMajor, nodeMinor, len(name)+1, checksum, name)
	if err != nil {
		return err
	}
	return c.pad()
}

func (c *cpioWriter) pad() error {
	_, err := c.Write(make([]byte, -c.written&3))
	return err
}

func (c *cpioWriter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.written += int64(n)
	return n, err
}
