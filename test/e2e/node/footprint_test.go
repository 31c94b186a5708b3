package node

import (
	"slices"
	"testing"
)

func TestFootprintDifferences(t *testing.T) {
	const run, other = runPrefix + "1", runPrefix + "2"
	before := Footprint{
		"mount / of ext4":     "",
		"link eth0":           "",
		"sysctl kernel/panic": "0",
		"file /tmp/" + other:  "",
	}
	after := Footprint{
		"mount / of ext4":                     "",
		"sysctl kernel/panic":                 "10",
		"cgroup /sys/fs/cgroup/cpu/" + run:    "",
		"cgroup /sys/fs/cgroup/memory/" + run: "",
		"cgroup /sys/fs/cgroup/cpu/" + other:  "",
	}
	got := before.differences(after, run)
	want := []string{
		"left: cgroup /sys/fs/cgroup/cpu/" + run,
		"left: cgroup /sys/fs/cgroup/memory/" + run,
		`changed: sysctl kernel/panic from "0" to "10"`,
		"gone: link eth0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := before.differences(before, run); len(got) > 0 {
		t.Errorf("it differs from itself: %q", got)
	}
}

func TestFootprintSeesWhatANodeWouldLeave(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	before := TakeFootprint()
	dir, lock, err := newRunDir()
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	want := "left: file " + dir
	// Others may do this and that meanwhile.
	got := before.differences(TakeFootprint(), (&Node{dir: dir}).Run())
	if !slices.Contains(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
