package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// kubeletDir is a mount of its own, and shared, as on a node.
const kubeletDir = "/var/lib/kubelet"

func mountAll() error {
	for _, m := range []struct {
		kind, at string
		flags    uintptr
	}{
		{"proc", "/proc", 0},
		{"sysfs", "/sys", 0},
		{"devtmpfs", "/dev", 0},
		{"tmpfs", "/run", 0},
		{"tmpfs", kubeletDir, unix.MS_SHARED},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
		if m.flags == 0 {
			continue
		}
		if err := unix.Mount("", m.at, "", m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	return os.MkdirAll("/tmp", 0o1777)
}

// loadModules loads the modules of the initial RAM disk, whose names are in order.
func loadModules() error {
	files, err := filepath.Glob("/modules/*.ko")
	if err != nil {
		return err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}
