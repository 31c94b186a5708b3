package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// runPrefix begins the names of the directory of a run and of its cgroup, which are the same, so that
// what a killed run left can be told from what another run needs.
const runPrefix = "csi-rdma-gate-e2e-"

// lockName is a file in the directory that its run holds a lock on.
const lockName = "lock"

// newRunDir makes a directory that sweep leaves alone until the lock is closed.
func newRunDir() (dir string, lock *os.File, err error) {
	unlocked, err := os.MkdirTemp("", "."+runPrefix)
	if err != nil {
		return "", nil, err
	}
	dir = filepath.Join(filepath.Dir(unlocked), strings.TrimPrefix(filepath.Base(unlocked), "."))
	if lock, err = os.Create(filepath.Join(unlocked, lockName)); err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(unlocked, "logs"), 0o755)
	}
	if err == nil {
		err = os.Rename(unlocked, dir)
	}
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(unlocked))
	}
	return dir, lock, nil
}

// sweep removes what runs left that were killed. Their processes, mounts and links ended with them.
func sweep() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), runPrefix+"*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		lock, err := os.Open(filepath.Join(dir, lockName))
		if err != nil {
			continue // it is being removed
		}
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			fmt.Printf("removing what a killed run left in %s\n", dir)
			err = remove(dir)
		}
		lock.Close()
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
	}
	return nil
}

// remove removes a run's cgroups and its directory.
func remove(dir string) error {
	return errors.Join(removeCgroup(dir, filepath.Base(dir)), os.RemoveAll(dir))
}

// Run is the name of the node's run, which no other run has.
func (n *Node) Run() string { return filepath.Base(n.dir) }

// cgroup is the name of the node's cgroup in every hierarchy.
func (n *Node) cgroup() string { return n.Run() }
