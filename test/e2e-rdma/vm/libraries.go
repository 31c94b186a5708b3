package vm

import (
	"debug/elf"
	"fmt"
	"path/filepath"
)

// loader is the dynamic linker. Programs name it by its full path, /lib64/…, libc as a library.
const loader = "ld-linux-x86-64.so.2"

// libraries are the files of shared libraries by the name that programs ask for.
type libraries map[string]string

// findLibraries takes those of extracted packages.
func findLibraries(roots []string) (libraries, error) {
	found := make(libraries)
	for _, root := range roots {
		for _, dir := range []string{"lib", "usr/lib"} {
			files, err := filepath.Glob(filepath.Join(root, dir, "x86_64-linux-gnu", "*.so*"))
			if err != nil {
				return nil, err
			}
			for _, file := range files {
				found[filepath.Base(file)] = file
			}
		}
	}
	return found, nil
}

// closure returns the names of all libraries that have to be there for files, programs or libraries,
// to be loaded: those that they need, and those that these need.
func (l libraries) closure(files ...string) (names []string, err error) {
	seen := make(map[string]bool)
	for len(files) > 0 {
		file := files[0]
		files = files[1:]
		needed, err := neededBy(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, name := range needed {
			if seen[name] {
				continue
			}
			seen[name] = true
			if l[name] == "" {
				return nil, fmt.Errorf("%s needs %s, which none of the packages has", file, name)
			}
			names = append(names, name)
			files = append(files, l[name])
		}
	}
	return names, nil
}

// neededBy reads the NEEDED entries of an ELF file; one that is linked statically has none.
func neededBy(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ImportedLibraries()
}
