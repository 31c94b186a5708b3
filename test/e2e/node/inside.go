package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// insideReady is what the first process says once the node is furnished; anything else is an error.
const insideReady = "ready"

// Inside furnishes the namespaces that this process is the first one of, and then takes care of
// orphans until it is killed. dir is the run's directory.
func Inside(dir string) {
	ready := os.NewFile(3, "ready")
	said := insideReady
	if err := furnish(dir); err != nil {
		said = err.Error()
	}
	_, _ = ready.WriteString(said)
	ready.Close()
	if said != insideReady {
		os.Exit(1)
	}
	reap()
}

// reap waits for the processes that lost their parent.
func reap() {
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, unix.SIGCHLD)
	for range orphans {
		for {
			pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
		}
	}
}

func furnish(dir string) error {
	if err := unix.Sethostname([]byte(Name)); err != nil {
		return err
	}
	if err := mountAll(dir); err != nil {
		return err
	}
	return connect()
}

// mountAll makes mounts that nobody outside sees, but that containers may make for the node.
func mountAll(dir string) error {
	below := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"kubelet", "upper/upper", "sysctl"} {
		if err := os.MkdirAll(below(d), 0o755); err != nil {
			return err
		}
	}
	mounts := []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{target: "/", flags: unix.MS_REC | unix.MS_PRIVATE},
		{source: "proc", target: "/proc", kind: "proc"},
		{source: "tmpfs", target: "/run", kind: "tmpfs", data: "mode=755"},
		// Kubelet links logs from a fixed place there.
		{source: "tmpfs", target: "/var/log", kind: "tmpfs", data: "mode=755"},
		// For the directories below /var/lib that are not on this machine. The upper one is a mount of
		// its own since the directory above it may be an overlay itself.
		{source: "tmpfs", target: below("upper"), kind: "tmpfs", data: "mode=755"},
	}
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, d := range []string{below("upper/upper"), below("upper/work")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=/var/lib,upperdir=%s,workdir=%s", below("upper/upper"), below("upper/work"))
	if err := unix.Mount("overlay", "/var/lib", "overlay", 0, layers); err != nil {
		return fmt.Errorf("mount /var/lib: %w", err)
	}
	if err := os.MkdirAll(KubeletDir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(below("kubelet"), KubeletDir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", KubeletDir, err)
	}
	if err := maskSysctls(below("sysctl")); err != nil {
		return err
	}
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// sysctls are those of the whole machine that kubelet writes, unless they have these values.
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// maskSysctls puts files with the values that kubelet wants over the real ones.
func maskSysctls(dir string) error {
	for name, value := range sysctls {
		target := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(target); err != nil {
			return err
		}
		file := filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(file, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", target, err)
		}
	}
	return nil
}

// connect gives the node an address that is not a loopback one, which Kubernetes asks for, and a
// default route, by which it finds it. It leads nowhere.
func connect() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "nowhere"}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("veth pair: %w", err)
	}
	address := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(Address), Mask: net.CIDRMask(24, 32)}}
	if err := netlink.AddrAdd(pair, address); err != nil {
		return err
	}
	for _, name := range []string{"nowhere", "eth0"} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetUp(l); err != nil {
			return err
		}
	}
	eth0, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	err = netlink.RouteAdd(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: net.ParseIP(gateway)})
	if errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return err
}
