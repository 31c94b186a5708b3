package story

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountsBelow lists the mount points in dir, in the order in which they were made.
func mountsBelow(dir string) ([]string, error) {
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, err
	}
	var points []string
	for _, i := range infos {
		points = append(points, i.Mountpoint)
	}
	return points, nil
}

// unmountBelow unmounts them, the newest first.
func unmountBelow(dir string) error {
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(points) {
		if uErr := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); uErr != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", p, uErr))
		}
	}
	return err
}

// leftovers is an error if the gate, the driver or kubelet left something that a drained node
// without them would not have.
func (s *Stage) leftovers() error {
	var left []string
	mounts, err := mountsBelow(s.dir)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		left = append(left, "mount "+m)
	}
	err = filepath.WalkDir(s.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Type() == fs.ModeSocket || e.Name() == "vol_data.json" {
			left = append(left, path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, ", "))
	}
	return nil
}

// sayMounts prints where the pod's volume is mounted, or that the driver may not mount.
func (s *Stage) sayMounts(p pod) error {
	mounts, err := mountsBelow(s.dir)
	if err != nil {
		return err
	}
	want := map[string]bool{s.Kubelet.StagingPath(p.volume): true, s.Kubelet.TargetPath(p.uid, p.volume): true}
	found := false
	for _, m := range mounts {
		if want[m] {
			s.say.line("mount", "%s", short(strings.TrimPrefix(m, s.dir+"/")))
			found = true
		}
	}
	if !found {
		s.say.line("mount", "none: the driver may not mount here and makes plain directories")
	}
	return nil
}

// short cuts the digests in a path, which nobody reads.
func short(path string) string {
	elems := strings.Split(path, "/")
	for i, e := range elems {
		if len(e) == 2*sha256.Size {
			elems[i] = e[:8] + "…"
		}
	}
	return strings.Join(elems, "/")
}
