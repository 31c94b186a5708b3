package node

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSweepRemovesOnlyWhatNobodyHolds(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dead, lock, err := newRunDir()
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	live, lock, err := newRunDir()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	other := filepath.Join(os.TempDir(), "other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}

	if err := sweep(); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{dead: false, live: true, other: true} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s is there: %t, want %t", path, err == nil, want)
		}
	}
}
