package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// debianPackage is a package in the version that apt would install.
type debianPackage struct{ name, version string }

// withFreshLists tries again after an update of apt's lists: they can be missing, or so old that
// their packages are gone.
func withFreshLists[T any](ctx context.Context, op func() (T, error)) (T, error) {
	result, err := op()
	if err == nil || ctx.Err() != nil {
		return result, err
	}
	if updateErr := command(ctx, "", "apt-get", "--quiet", "update"); updateErr != nil {
		return result, errors.Join(err, updateErr)
	}
	return op()
}

// fetch returns a directory with the files of each package. It is in dir and stays there.
func fetch(ctx context.Context, dir string, names ...string) (roots []string, err error) {
	packages, err := candidates(ctx, names)
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	for _, p := range packages {
		root := filepath.Join(dir, p.name+"_"+p.version)
		if _, err := os.Stat(root); err != nil {
			if err := p.extract(ctx, root); err != nil {
				return nil, err
			}
		}
		roots = append(roots, root)
	}
	return roots, nil
}

func candidates(ctx context.Context, names []string) ([]debianPackage, error) {
	out, err := output(ctx, "apt-cache", slices.Concat([]string{"show", "--no-all-versions"}, names)...)
	if err != nil {
		return nil, err
	}
	return parseCandidates(out, names)
}

// parseCandidates takes a control file with a paragraph for each package.
func parseCandidates(control string, names []string) ([]debianPackage, error) {
	versions := make(map[string]string)
	var name string
	for line := range strings.Lines(control) {
		if value, ok := strings.CutPrefix(line, "Package: "); ok {
			name = strings.TrimSpace(value)
		} else if value, ok := strings.CutPrefix(line, "Version: "); ok {
			versions[name] = strings.TrimSpace(value)
		}
	}
	var packages []debianPackage
	for _, name := range names {
		if versions[name] == "" {
			return nil, fmt.Errorf("apt does not say which version of %s it would take", name)
		}
		packages = append(packages, debianPackage{name, versions[name]})
	}
	return packages, nil
}

// extract puts the package's files at root, all or nothing.
func (p debianPackage) extract(ctx context.Context, root string) error {
	if err := os.MkdirAll(filepath.Dir(root), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(root), ".package-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	fmt.Printf("downloading %s %s\n", p.name, p.version)
	// apt's own user may not write here.
	if err := command(ctx, tmp, "apt-get", "--quiet", "--quiet", "-o", "APT::Sandbox::User=root", "download", p.name+"="+p.version); err != nil {
		return err
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if err != nil || len(debs) != 1 {
		return fmt.Errorf("apt-get download %s left %d packages, not one", p.name, len(debs))
	}
	files := filepath.Join(tmp, "files")
	if err := command(ctx, "", "dpkg", "--extract", debs[0], files); err != nil {
		return err
	}
	return os.Rename(files, root)
}

// command runs a program in dir, whose output matters only when it fails.
func command(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return nil
}

func output(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return string(out), nil
}
