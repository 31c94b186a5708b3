package parts

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// fetch returns a directory with the files of a Debian package, in whatever version apt would
// install. It is in dir and stays there.
func fetch(ctx context.Context, dir, name string) (root string, err error) {
	root = filepath.Join(dir, name)
	if _, err := os.Stat(root); err == nil {
		return root, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(dir, ".package-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	fmt.Printf("downloading %s\n", name)
	if err := download(ctx, tmp, name); err != nil {
		return "", err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("apt-get download %s left %d packages, not one", name, len(debs))
	}
	files := filepath.Join(tmp, "files")
	if err := command(ctx, "", "dpkg-deb", "--extract", debs[0], files); err != nil {
		return "", err
	}
	return root, os.Rename(files, root)
}

// download puts the package into dir. It tries again after an update of apt's lists: they can be
// missing, or so old that their packages are gone.
func download(ctx context.Context, dir, name string) error {
	// apt's own user may not write here.
	get := []string{"apt-get", "--quiet", "--quiet", "-o", "APT::Sandbox::User=root", "download", name}
	if err := command(ctx, dir, get...); err == nil || ctx.Err() != nil {
		return err
	}
	if err := command(ctx, "", "apt-get", "--quiet", "update"); err != nil {
		return err
	}
	return command(ctx, dir, get...)
}

// command runs a program in dir, whose output matters only when it fails.
func command(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
