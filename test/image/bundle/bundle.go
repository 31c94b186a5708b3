package bundle

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
)

// Write makes the bundle in dir, which it creates: config.json, and a root file system of its own, since runc makes mount
// points in it. Files are hard links to those of rootfs, so both have to be on one file system.
func (c Container) Write(ctx context.Context, dir, rootfs string) error {
	spec, err := c.Spec(ctx)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := clone(rootfs, filepath.Join(dir, spec.Root.Path)); err != nil {
		return err
	}
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644)
}

// clone repeats directories and links and shares the files.
func clone(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		name := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			return os.Mkdir(name, 0o755)
		case e.Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, name)
		default:
			return os.Link(path, name)
		}
	})
}
