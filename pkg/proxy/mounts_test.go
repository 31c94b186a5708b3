package proxy

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// inMountNamespace runs f in a mount namespace of its own, on a thread that ends with it. What
// f mounts vanishes with it.
func inMountNamespace(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root; CI runs as root")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := enterMountNamespace(); err != nil {
			t.Error(err)
			return
		}
		f(t)
	}()
	<-done
}

// enterMountNamespace gives the calling goroutine's thread a mount namespace of its own. The thread
// is never unlocked, so that it is thrown away at the goroutine's end.
func enterMountNamespace() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make / private: %w", err)
	}
	return nil
}

func mount(t *testing.T, target, propagation string) {
	t.Helper()
	if err := os.MkdirAll(target, 0o755); err != nil {
		t.Error(err)
	}
	if err := unix.Mount("tmpfs", target, "tmpfs", 0, ""); err != nil {
		t.Errorf("mount %s: %v", target, err)
	}
	flags := map[string]uintptr{"private": unix.MS_PRIVATE, "shared": unix.MS_SHARED}[propagation]
	if err := unix.Mount("", target, "", flags, ""); err != nil {
		t.Errorf("make %s %s: %v", target, propagation, err)
	}
}

func TestMountedReadsTheKernelsTable(t *testing.T) {
	inMountNamespace(t, func(t *testing.T) {
		dir := t.TempDir()
		mount(t, filepath.Join(dir, "with space/globalmount/below"), "private")
		if err := os.Symlink(filepath.Join(dir, "with space"), filepath.Join(dir, "link")); err != nil {
			t.Error(err)
		}
		for place, want := range map[string]bool{
			"with space/globalmount/below": true,
			"with space/globalmount":       true,
			"with space/globalmount/":      true,
			"with space":                   true,
			"link/globalmount":             true,
			"with space/globalmount/belo":  false,
			"with space/other":             false,
			"absent":                       false,
		} {
			got, err := (&mountPoints{table: threadMounts}).mounted([]string{filepath.Join(dir, "nothing"), dir + "/" + place})
			if got != want || err != nil {
				t.Errorf("%s: %v, %v; want %v", place, got, err, want)
			}
		}
	})
}

// A read that has begun may miss what was mounted just before the question.
func TestWhoAsksDuringAReadSharesTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		release := make(chan struct{})
		m := &mountPoints{table: func(f mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
			n := reads.Add(1)
			if n > 1 {
				f(&mountinfo.Info{Mountpoint: "/late"})
			}
			<-release
			return nil, nil
		}}
		ask := func(want bool) {
			go func() {
				if got, err := m.mounted([]string{"/late"}); got != want || err != nil {
					t.Errorf("mounted: %v, %v; want %v", got, err, want)
				}
			}()
			synctest.Wait()
		}
		ask(false)
		for range 100 {
			ask(true)
		}
		close(release)
		synctest.Wait()
		if n := reads.Load(); n != 2 {
			t.Errorf("%d reads for 101 calls", n)
		}
	})
}

// threadMounts is the table of the calling thread, whose mount namespace differs from that of the
// process in these tests.
func threadMounts(f mountinfo.FilterFunc) ([]*mountinfo.Info, error) {
	file, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return mountinfo.GetMountsFromReader(file, f)
}

func TestAPrivateMountOfTheKubeletDirectoryIsRefused(t *testing.T) {
	inMountNamespace(t, func(t *testing.T) {
		dir := t.TempDir()
		for _, tc := range []struct {
			name, place, propagation string
			private                  string // what the error names; empty when there is none
		}{
			{"nothing is mounted", "", "", ""},
			{"a shared mount at it", "a/kubelet", "shared", ""},
			{"a private mount at it", "b/kubelet", "private", "b/kubelet"},
			{"a private mount above it", "c", "private", "c"},
			{"a private mount beside it", "d/kubelet2", "private", ""},
			{"a private mount below it", "e/kubelet/pods/x", "private", ""},
		} {
			kubelet := filepath.Join(dir, "none")
			if tc.place != "" {
				mount(t, filepath.Join(dir, tc.place), tc.propagation)
				kubelet = filepath.Join(dir, tc.place[:1], "kubelet")
			}
			if err := os.MkdirAll(kubelet, 0o755); err != nil {
				t.Error(err)
			}
			err := checkPropagation(threadMounts, kubelet)
			if (err == nil) != (tc.private == "") || err != nil && !strings.HasPrefix(err.Error(), filepath.Join(dir, tc.private)+" is a private mount") {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
	})
}
