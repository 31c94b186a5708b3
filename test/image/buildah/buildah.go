// Package buildah builds images in a store of its own, with the Debian package of that name and without any registry.
package buildah

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Store is a directory with images. It is not safe for concurrent use.
type Store struct{ dir string }

// NewStore makes an empty store in a new directory below parent; empty is os.TempDir.
func NewStore(parent string) (*Store, error) {
	dir, err := os.MkdirTemp(parent, "buildah-")
	return &Store{dir}, err
}

// Close removes the store.
func (s *Store) Close() error { return os.RemoveAll(s.dir) }

// Command is the command line by which others use this store. The driver vfs works wherever files can be copied.
func (s *Store) Command() []string {
	return []string{"buildah", "--root", filepath.Join(s.dir, "root"), "--runroot", filepath.Join(s.dir, "run"), "--storage-driver", "vfs"}
}

// Run runs a command of buildah and returns what it prints, without the last newline.
func (s *Store) Run(ctx context.Context, args ...string) (string, error) {
	command := append(s.Command(), args...)
	return Output(exec.CommandContext(ctx, command[0], command[1:]...))
}

// Output is cmd.Output with what the command says on standard error in the error.
func Output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out, stderr.Bytes())
	}
	return strings.TrimSpace(string(out)), nil
}

// Commit makes an image out of the directory tree at dir; settings are flags of `buildah config`.
func (s *Store) Commit(ctx context.Context, name, dir string, settings ...string) error {
	container, err := s.Run(ctx, "from", "scratch")
	if err != nil {
		return err
	}
	for _, step := range [][]string{
		{"copy", container, dir, "/"},
		append(append([]string{"config"}, settings...), container),
		{"commit", container, name},
		{"rm", container},
	} {
		if _, err := s.Run(ctx, step...); err != nil {
			return err
		}
	}
	return nil
}

// Extract copies an image's root file system to the new directory dir.
func (s *Store) Extract(ctx context.Context, image, dir string) (err error) {
	container, err := s.Run(ctx, "from", image)
	if err != nil {
		return err
	}
	defer func() {
		_, rmErr := s.Run(ctx, "rm", container)
		err = errors.Join(err, rmErr)
	}()
	root, err := s.Run(ctx, "mount", container)
	if err != nil {
		return err
	}
	_, err = Output(exec.CommandContext(ctx, "cp", "--archive", root, dir))
	return err
}

// Inspect is what the image says of itself.
func (s *Store) Inspect(ctx context.Context, image string) (*imagespec.Image, error) {
	text, err := s.Run(ctx, "inspect", "--type=image", image)
	if err != nil {
		return nil, err
	}
	var about struct{ OCIv1 imagespec.Image }
	return &about.OCIv1, json.Unmarshal([]byte(text), &about)
}
