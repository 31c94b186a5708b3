package vm

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Modules returns the files of kernel modules and of all they depend on, in an order in which they
// can be loaded. Those built into the kernel are left out.
func (k *Kernel) Modules(names ...string) ([]string, error) {
	files, err := k.moduleFiles()
	if err != nil {
		return nil, err
	}
	builtin, err := k.builtinModules()
	if err != nil {
		return nil, err
	}
	var order []string
	seen := make(map[string]bool)
	var add func(name string) error
	add = func(name string) error {
		if seen[name] || builtin[name] {
			return nil
		}
		seen[name] = true
		file := files[name]
		if file == "" {
			return fmt.Errorf("the kernel %s has no module %s; take a kernel with it, cloud kernels lack it", k.Release, name)
		}
		depends, err := dependencies(file)
		if err != nil {
			return err
		}
		for _, d := range depends {
			if err := add(d); err != nil {
				return err
			}
		}
		order = append(order, file)
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleFiles are the modules by name. An extracted package has no modules.dep: that file is made
// at installation.
func (k *Kernel) moduleFiles() (map[string]string, error) {
	files := make(map[string]string)
	err := filepath.WalkDir(k.modules, func(path string, e fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".ko" {
			files[moduleName(path)] = path
		}
		return err
	})
	return files, err
}

func (k *Kernel) builtinModules() (map[string]bool, error) {
	list, err := os.ReadFile(filepath.Join(k.modules, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	names := make(map[string]bool)
	for line := range strings.Lines(string(list)) {
		names[moduleName(strings.TrimSpace(line))] = true
	}
	return names, nil
}

// moduleName is the name by which the kernel knows the module in a file.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}

// dependencies reads what a module says of itself.
func dependencies(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("%s: %w", file, errors.New("no section .modinfo"))
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var names []string
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok && list != "" {
			for name := range strings.SplitSeq(list, ",") {
				names = append(names, strings.ReplaceAll(name, "-", "_"))
			}
		}
	}
	return names, nil
}
