package probe

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

// line is the first line of a file that somebody else writes, and when it was written.
type line struct {
	text    string
	written time.Time
	err     error
}

var (
	errStuck  = errors.New("reading did not return")
	errNoFile = errors.New("not a regular file")
)

// lineReader reads such a file. It may lie on a file system that hangs, so reads are bounded like
// those of the hardware.
type lineReader struct {
	path string
	call call[line]
}

func (r *lineReader) read(ctx context.Context) line {
	l, ok := r.call.do(ctx, func() line { return readLine(r.path) })
	if !ok {
		return line{err: errStuck}
	}
	return l
}

func readLine(path string) line {
	// Opening a pipe would otherwise wait for a writer, and go on waiting when a file takes its place.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return line{err: err}
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errNoFile
	}
	if err != nil {
		return line{err: err}
	}
	data, err := io.ReadAll(io.LimitReader(f, maxAttribute))
	text, _, _ := strings.Cut(string(data), "\n")
	return line{text: oneLine(text, 200), written: info.ModTime(), err: err}
}
