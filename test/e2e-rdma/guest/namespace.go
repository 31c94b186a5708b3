package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace is a network namespace of its own, as a pod without hostNetwork has. It lives until it
// is closed and no process is left in it.
type namespace struct{ netns.NsHandle }

func newNamespace() (*namespace, error) {
	n := &namespace{}
	err := abroad(func(netns.NsHandle) (err error) {
		n.NsHandle, err = netns.New()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("new network namespace: %w", err)
	}
	return n, nil
}

// do runs op, and what processes it starts, in the namespace.
func (n *namespace) do(op func() error) error {
	return n.doWithHome(func(netns.NsHandle) error { return op() })
}

// doWithHome also gives op the namespace that we come from. A thread that is elsewhere cannot name
// that by the process: it may be the very thread that stands for the process.
func (n *namespace) doWithHome(op func(home netns.NsHandle) error) error {
	return abroad(func(home netns.NsHandle) error {
		if err := netns.Set(n.NsHandle); err != nil {
			return err
		}
		return op(home)
	})
}

// abroad lets op leave our namespace and comes back.
func abroad(op func(home netns.NsHandle) error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	if err != nil {
		return err
	}
	defer home.Close()
	err = op(home)
	if homeErr := netns.Set(home); homeErr != nil {
		panic(homeErr) // nothing that this thread does from here on would be right
	}
	return err
}

// take moves an interface of ours here.
func (n *namespace) take(name string) error {
	return withLink(name, "move", func(l netlink.Link) error { return netlink.LinkSetNsFd(l, int(n.NsHandle)) })
}

// giveBack moves it to our namespace, where it is down then.
func (n *namespace) giveBack(name string) error {
	return n.doWithHome(func(home netns.NsHandle) error {
		return withLink(name, "move back", func(l netlink.Link) error { return netlink.LinkSetNsFd(l, int(home)) })
	})
}

// mountSys mounts the sysfs that a pod of this namespace has, and the host's /dev beside it.
func (n *namespace) mountSys(root string) error {
	for _, dir := range []string{root + "/sys", root + "/dev"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	return errors.Join(
		n.do(func() error { return unix.Mount("sysfs", root+"/sys", "sysfs", 0, "") }),
		unix.Mount("/dev", root+"/dev", "", unix.MS_BIND, ""),
	)
}

func unmountSys(root string) error {
	return errors.Join(unix.Unmount(root+"/sys", 0), unix.Unmount(root+"/dev", 0))
}
