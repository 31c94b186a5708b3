package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// InsideCommand is the first argument by which this program, started by itself, is to call Inside
// with the second one.
const InsideCommand = "inside"

// cloneFlags are the kinds of the node's own namespaces.
const cloneFlags = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC

// namespaces are what makes the node a machine of its own, as long as its first process lives. They
// end with this process, however it ends: the kernel kills the first process, with it every other
// one, and takes mounts and links away with the last of them.
type namespaces struct {
	init *exec.Cmd
	// pidFD refers to the first process.
	pidFD int
	// ids are the namespaces' names in /proc.
	ids []string
}

// newNamespaces starts the first process and waits until it has furnished its namespaces. It must
// be called by a goroutine whose thread lives as long as the program.
func newNamespaces(dir string) (*namespaces, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	ns := &namespaces{init: exec.Command(self, InsideCommand, dir), pidFD: -1}
	ns.init.ExtraFiles = []*os.File{theirs}
	ns.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: cloneFlags,
		Setpgid:    true, // Ctrl-C is for us, and we end it
		Pdeathsig:  syscall.SIGKILL,
		PidFD:      &ns.pidFD,
	}
	err = ns.init.Start()
	theirs.Close()
	if err != nil {
		return nil, fmt.Errorf("new namespaces: %w; this takes root", err)
	}
	said, err := io.ReadAll(ready)
	if err == nil && string(said) != insideReady {
		err = errors.New(strings.TrimSpace(string(said)))
	}
	if err == nil {
		ns.ids, err = identities(ns.init.Process.Pid)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("furnishing the node: %w", err), ns.Close())
	}
	return ns, nil
}

// Close kills every process in the namespaces and returns when all are gone.
func (ns *namespaces) Close() error {
	err := ns.init.Process.Kill()
	_ = ns.init.Wait() // it was killed
	if ns.pidFD >= 0 {
		err = errors.Join(err, unix.Close(ns.pidFD))
	}
	return errors.Join(err, ns.deserted())
}

// deserted returns an error that names the processes that are still in one of the namespaces.
func (ns *namespaces) deserted() error {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		ids, err := identities(pid)
		if err != nil || !slices.ContainsFunc(ids, func(id string) bool { return slices.Contains(ns.ids, id) }) {
			continue // it has ended, or is somewhere else
		}
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		errs = append(errs, fmt.Errorf("process %d (%s) is still on the node", pid, strings.TrimSpace(string(name))))
	}
	return errors.Join(errs...)
}

// identities are the namespaces of a process, such as mnt:[4026532300].
func identities(pid int) ([]string, error) {
	var ids []string
	for _, kind := range []string{"mnt", "net", "uts", "ipc", "pid"} {
		id, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// Path is where a path of the node's file system, mounts included, can be seen from outside.
func (ns *namespaces) Path(path string) string {
	return filepath.Join(fmt.Sprintf("/proc/%d/root", ns.init.Process.Pid), path)
}

// Start starts the command inside. It is a child of ours like any other, waited for as usual.
func (ns *namespaces) Start(cmd *exec.Cmd) error {
	result := make(chan error)
	go func() {
		// Never unlocked: the thread ends with the goroutine, since it has left our namespaces.
		runtime.LockOSThread()
		result <- ns.start(cmd)
	}()
	return <-result
}

func (ns *namespaces) start(cmd *exec.Cmd) error {
	// A thread that shares its working directory with others may not change its mounts.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Setns(ns.pidFD, cloneFlags); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	return cmd.Start()
}

// Dial connects to a literal address on the node's network.
func (ns *namespaces) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	results := make(chan result)
	go func() {
		runtime.LockOSThread() // as in Start
		if err := unix.Setns(ns.pidFD, unix.CLONE_NEWNET); err != nil {
			results <- result{err: fmt.Errorf("setns: %w", err)}
			return
		}
		// A socket is made by the goroutine that dials, as long as there is no name to resolve.
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		results <- result{conn, err}
	}()
	r := <-results
	return r.conn, r.err
}
