package vm

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestClosure(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, needed ...string) string {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, elfFile(needed...), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	tool := write("a/bin/tool", "libverbs.so.1", "libc.so.6")
	plugin := write("a/usr/lib/x86_64-linux-gnu/verbs/plugin.so", "libverbs.so.1", "libm.so.6")
	static := write("a/bin/static")
	broken := write("a/bin/broken", "libgone.so.2")
	write("a/usr/lib/x86_64-linux-gnu/libverbs.so.1", "libnl.so.3", "libc.so.6")
	write("a/usr/lib/x86_64-linux-gnu/libunused.so.1", "libgone.so.2")
	write("b/lib/x86_64-linux-gnu/libnl.so.3", "libverbs.so.1", "libc.so.6") // a circle
	write("b/lib/x86_64-linux-gnu/libm.so.6", "libc.so.6")
	write("b/lib/x86_64-linux-gnu/libc.so.6", loader)
	write("b/lib/x86_64-linux-gnu/" + loader)

	found, err := findLibraries([]string{filepath.Join(dir, "a"), filepath.Join(dir, "b")})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ files, want []string }{
		"of a program":               {[]string{tool}, []string{loader, "libc.so.6", "libnl.so.3", "libverbs.so.1"}},
		"of a program and a plug-in": {[]string{tool, plugin}, []string{loader, "libc.so.6", "libm.so.6", "libnl.so.3", "libverbs.so.1"}},
		"of a static program":        {[]string{static}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := found.closure(tc.files...)
			slices.Sort(got)
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
	if got, err := found.closure(broken); err == nil || !strings.Contains(err.Error(), "libgone.so.2") {
		t.Errorf("got %q, %v, want an error that names libgone.so.2", got, err)
	}
	if got, err := found.closure(filepath.Join(dir, "nothing")); err == nil {
		t.Errorf("of a missing file: %q, want an error", got)
	}
}

// elfFile is an ELF file with nothing in it but NEEDED entries. The loader does not care for
// sections, but debug/elf does: .dynamic is section 1, its strings are section 2.
func elfFile(needed ...string) []byte {
	names := []byte{0}
	var dynamic []elf.Dyn64
	for _, name := range needed {
		dynamic = append(dynamic, elf.Dyn64{Tag: int64(elf.DT_NEEDED), Val: uint64(len(names))})
		names = append(append(names, name...), 0)
	}
	dynamic = append(dynamic, elf.Dyn64{Tag: int64(elf.DT_NULL)})

	const sections = 3
	header := elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Shnum: sections, Shstrndx: 2,
	}
	header.Ehsize = uint16(binary.Size(header))
	header.Shoff = uint64(header.Ehsize)
	header.Shentsize = uint16(binary.Size(elf.Section64{}))
	dynamicAt := header.Shoff + sections*uint64(header.Shentsize)
	dynamicSize := uint64(binary.Size(dynamic))
	table := [sections]elf.Section64{
		1: {Type: uint32(elf.SHT_DYNAMIC), Link: 2, Off: dynamicAt, Size: dynamicSize, Entsize: uint64(binary.Size(elf.Dyn64{}))},
		2: {Type: uint32(elf.SHT_STRTAB), Off: dynamicAt + dynamicSize, Size: uint64(len(names))},
	}
	var file bytes.Buffer
	for _, part := range []any{header, table, dynamic, names} {
		_ = binary.Write(&file, binary.LittleEndian, part) // to memory
	}
	return file.Bytes()
}
