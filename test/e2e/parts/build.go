package parts

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// recipe is the file, beside the programs, that says what they were built from.
const recipe = "built-from"

// build builds the tools of module's go.mod into dir, statically, unless the same has been done
// before. Its first time takes minutes.
func build(ctx context.Context, module, dir, flags string) error {
	want, err := ingredients(module, flags)
	if err != nil {
		return err
	}
	have, err := os.ReadFile(filepath.Join(dir, recipe))
	if err == nil && bytes.Equal(have, want) {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	fmt.Printf("building %s\n", filepath.Base(module))
	began := time.Now()
	// Two at a time, so that a small machine's memory suffices for the linkers.
	cmd := exec.CommandContext(ctx, "go", "build", "-p=2", "-trimpath", "-mod=readonly",
		"-ldflags=-s -w "+flags, "-o", dir+"/", "tool")
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("in %s: %s: %w", module, strings.Join(cmd.Args, " "), err)
	}
	fmt.Printf("built in %s\n", time.Since(began).Round(time.Second))
	return os.WriteFile(filepath.Join(dir, recipe), want, 0o644)
}

// ingredients change when the programs have to be built anew.
func ingredients(module, flags string) ([]byte, error) {
	sum := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return nil, err
		}
		sum.Write(b)
	}
	return fmt.Appendf(nil, "%x %s\n", sum.Sum(nil), flags), nil
}
