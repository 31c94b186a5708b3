package vm

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// The kernel unpacks whatever it understands and is silent about the rest, so the format matters.
func TestWriteInitrd(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	if err := os.WriteFile(source, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	initrd := filepath.Join(dir, "initrd")
	if err := WriteInitrd(initrd, []File{{"init", source}, {"lib/a/b", source}, {"lib/a/c", source}}); err != nil {
		t.Fatal(err)
	}
	archive, err := os.ReadFile(initrd)
	if err != nil {
		t.Fatal(err)
	}
	got := unpack(t, archive)
	want := []string{
		"100755 init hello", "40755 lib ", "40755 lib/a ", "100755 lib/a/b hello", "100755 lib/a/c hello", "0 TRAILER!!! ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// unpack lists entries as "MODE NAME CONTENT".
func unpack(t *testing.T, archive []byte) (entries []string) {
	const headerSize = 110
	at := 0
	field := func(header []byte, number int) int {
		n, err := strconv.ParseInt(string(header[6+8*number:][:8]), 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	align := func() { at = (at + 3) &^ 3 }
	for at < len(archive) {
		header := archive[at:]
		if len(header) < headerSize || !bytes.HasPrefix(header, []byte("070701")) {
			t.Fatalf("no header at %d", at)
		}
		at += headerSize
		nameSize := field(header, 11)
		name := archive[at : at+nameSize-1]
		at += nameSize
		align()
		size := field(header, 6)
		entries = append(entries, fmt.Sprintf("%o %s %s", field(header, 1), name, archive[at:at+size]))
		at += size
		align()
	}
	return entries
}
