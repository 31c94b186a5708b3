package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// uverbs is a verbs device node.
type uverbs struct {
	path string
	rdev uint64
}

// findUverbs returns the node of an RDMA device, whose number may be any.
func findUverbs(device string) (uverbs, error) {
	entries, err := filepath.Glob("/sys/class/infiniband_verbs/uverbs*")
	if err != nil {
		return uverbs{}, err
	}
	for _, entry := range entries {
		name, err := os.ReadFile(filepath.Join(entry, "ibdev"))
		if err != nil || strings.TrimSpace(string(name)) != device {
			continue
		}
		u := uverbs{path: filepath.Join("/dev/infiniband", filepath.Base(entry))}
		var st unix.Stat_t
		if err := unix.Stat(u.path, &st); err != nil {
			return uverbs{}, fmt.Errorf("stat %s: %w", u.path, err)
		}
		u.rdev = st.Rdev
		return u, nil
	}
	return uverbs{}, errors.New("no verbs device for " + device)
}

func (u uverbs) unlink() error { return os.Remove(u.path) }

func (u uverbs) restore() error { return unix.Mknod(u.path, unix.S_IFCHR|0o666, int(u.rdev)) }

// openDescriptors lists the descriptors of verbs devices in all processes, as "PROCESS NODE".
func openDescriptors() ([]string, error) {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil, err
	}
	var open []string
	for _, link := range links {
		target, err := os.Readlink(link)
		if err == nil && strings.HasPrefix(target, "/dev/infiniband/") { // an error: closed meanwhile
			open = append(open, link+" "+target)
		}
	}
	return open, nil
}
