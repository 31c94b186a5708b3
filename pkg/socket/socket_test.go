package socket

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// echo accepts until the listener is closed.
func echo(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		_ = conn.Close()
	}
}

func newKeeper(t *testing.T, path string) *Keeper {
	t.Helper()
	k := NewKeeper(path, echo)
	t.Cleanup(k.Remove)
	return k
}

func mustPut(t *testing.T, k *Keeper) {
	t.Helper()
	if err := k.Put(); err != nil {
		t.Fatal(err)
	}
}

func connects(path string) bool {
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// dead leaves a socket at path on which nobody listens, as kill -9 does.
func dead(t *testing.T, path string) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

func TestPutServesForTheOwnerOnlyAndLeavesNothingBeside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	mustPut(t, newKeeper(t, path))
	if !connects(path) {
		t.Error("nobody answers")
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode %o, want 600", got)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("directory holds %v, want the socket alone", entries)
	}
}

func TestPutTakesThePlaceOfWhateverIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	dead(t, path)
	mustPut(t, newKeeper(t, path))
	if !connects(path) {
		t.Error("nobody answers")
	}
}

func TestTendPutsARemovedSocketBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	k := newKeeper(t, path)
	mustPut(t, k)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if state, _, err := k.Tend(); state != Missing || err != nil {
		t.Errorf("Tend() = %v, %v; want Missing", state, err)
	}
	if state, _, _ := k.Tend(); state != Ours || !connects(path) {
		t.Errorf("the socket is not back: state %v", state)
	}
}

func TestTendTriesAgainWhenTheDirectoryComes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugins", "csi.sock")
	k := newKeeper(t, path)
	if err := k.Put(); err == nil || k.Err() == nil {
		t.Fatal("Put in a directory that does not exist succeeded")
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.Tend(); err != nil || k.Err() != nil || !connects(path) {
		t.Errorf("not put in place: %v", err)
	}
}

func TestTroubleIsOverWhenTheDirectoryComesBackWithTheSocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plugins")
	path := filepath.Join(dir, "csi.sock")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	k := newKeeper(t, path)
	mustPut(t, k)
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := k.Tend(); err == nil {
		t.Fatal("no trouble without a directory")
	}
	if err := os.Rename(dir+"-away", dir); err != nil {
		t.Fatal(err)
	}
	if found, restored, err := k.Tend(); found != Ours || restored || err != nil || k.Err() != nil || !connects(path) {
		t.Errorf("found %v, restored %v, %v, %v", found, restored, err, k.Err())
	}
}

func TestASuccessorIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	old, next := newKeeper(t, path), newKeeper(t, path)
	mustPut(t, old)
	mustPut(t, next)
	if state, _, _ := old.Tend(); state != Replaced {
		t.Errorf("old state %v, want Replaced", state)
	}
	old.Remove()
	if state := next.State(); state != Ours || !connects(path) {
		t.Errorf("the successor's socket suffered: state %v", state)
	}
}

func TestTheOldOneReturnsWhenItsSuccessorGoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	old, next := newKeeper(t, path), newKeeper(t, path)
	mustPut(t, old)
	mustPut(t, next)
	next.Remove()
	if _, _, err := old.Tend(); err != nil || old.State() != Ours || !connects(path) {
		t.Errorf("not put back: %v", err)
	}
}

func TestWhatIsDeadIsNoSuccessor(t *testing.T) {
	for name, put := range map[string]func(t *testing.T, path string){
		"a dead socket": func(t *testing.T, path string) { dead(t, path) },
		"a file": func(t *testing.T, path string) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a link that leads nowhere": func(t *testing.T, path string) {
			if err := os.Symlink("nowhere", path); err != nil {
				t.Fatal(err)
			}
		},
		"a socket of another kind": func(t *testing.T, path string) {
			l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		},
		"a directory": func(t *testing.T, path string) {
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		path := filepath.Join(t.TempDir(), "csi.sock")
		k := newKeeper(t, path)
		mustPut(t, k)
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		put(t, path)
		if state, _, err := k.Tend(); state != Replaced || err != nil {
			t.Errorf("%s: Tend() = %v, %v", name, state, err)
		}
		if k.State() != Ours || !connects(path) {
			t.Errorf("%s is left in place", name)
		}
	}
}

func TestTheSameTroubleHasTheSameText(t *testing.T) {
	k := newKeeper(t, filepath.Join(t.TempDir(), "absent", "csi.sock"))
	first, second := k.Put(), k.Put()
	if first == nil || first.Error() != second.Error() || !strings.Contains(first.Error(), "csi.sock in place: no such file or directory; mount the host's directory at ") {
		t.Errorf("%v, then %v", first, second)
	}
}

func TestRemovedSocketStaysAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "csi.sock")
	k := newKeeper(t, path)
	mustPut(t, k)
	k.Remove()
	if _, _, err := k.Tend(); err != nil || exists(path) {
		t.Errorf("socket is back after Remove: %v", err)
	}
}

func TestPutSweepsLeftoversOfAKilledProcessOnly(t *testing.T) {
	dir := t.TempDir()
	leftover, live := filepath.Join(dir, dotPrefix+"0000"), filepath.Join(dir, dotPrefix+"1111")
	dead(t, leftover)
	l, err := net.Listen("unix", live)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	mustPut(t, newKeeper(t, filepath.Join(dir, "csi.sock")))
	if exists(leftover) {
		t.Error("the leftover is still there")
	}
	if !exists(live) {
		t.Error("another process's socket was removed on its way into place")
	}
}

func TestCheckPath(t *testing.T) {
	for path, want := range map[string]string{
		"/var/lib/kubelet/plugins/x/csi.sock": "",
		"csi.sock":                            "absolute",
		"/" + strings.Repeat("d", 100) + "/s": "107 bytes",
	} {
		err := CheckPath(path)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("CheckPath(%q) = %v, want %q", path, err, want)
		}
	}
}
