package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func newDaemon(t *testing.T, script string) (d *daemon, died chan error) {
	t.Helper()
	died = make(chan error, 1)
	return &daemon{
		name: "shell", path: "/bin/sh", args: []string{"-c", script},
		log:   filepath.Join(t.TempDir(), "log"),
		start: (*exec.Cmd).Start,
		died:  func(err error) { died <- err },
	}, died
}

func TestDaemonThatEndsByItselfIsReported(t *testing.T) {
	d, died := newDaemon(t, "echo the reason >&2; exit 3")
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	err := <-died
	if !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), d.log) {
		t.Errorf("got %v", err)
	}
	if log, err := os.ReadFile(d.log); err != nil || string(log) != "the reason\n" {
		t.Errorf("the log is %q, %v", log, err)
	}
}

func TestDaemonThatIsStoppedCanBeStartedAgain(t *testing.T) {
	d, died := newDaemon(t, "echo started; exec sleep 600")
	for range 2 {
		if err := d.Start(); err != nil {
			t.Fatal(err)
		}
		if err := d.Start(); err == nil {
			t.Error("started twice")
		}
		d.Stop()
	}
	d.Stop()
	select {
	case err := <-died:
		t.Errorf("reported: %v", err)
	default:
	}
}
