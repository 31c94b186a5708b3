package probe

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/klog/v2"
)

// captureLog collects what is logged until the test ends.
func captureLog(t *testing.T) *[]string {
	var mu sync.Mutex
	var lines []string
	t.Cleanup(klog.CaptureState().Restore)
	klog.SetLogger(funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, args)
	}, funcr.Options{}))
	return &lines
}

func TestLogHasALineForEachChangeAndNoneForAProbe(t *testing.T) {
	lines := captureLog(t)
	monitored(t, healthy, MonitorConfig{NoSelection: true}, func(b bench) {
		b.ticks(10)
		b.script.say(down)
		b.ticks(10)
		b.script.say(portSays(PhysLinkDown, "state 1: DOWN, phys_state 3: Disabled"))
		b.ticks(10)
		b.script.say(healthy)
		b.ticks(10)
		time.Sleep(time.Minute)
	})
	want := []string{
		"First look at RDMA ports", "No device is selected", "Gate opened",
		`"RDMA trouble" "subject"="mlx5_0/1" "was"="" "reason"="PhysLinkDown"`, "Gate closed",
		"RDMA trouble is over", "Gate opened",
	}
	if len(*lines) != len(want) {
		t.Fatalf("%d lines: %q", len(*lines), *lines)
	}
	for i, line := range *lines {
		if !strings.Contains(line, want[i]) {
			t.Errorf("line %d is %s, want %s", i, line, want[i])
		}
	}
}

func TestLogComplainsOnceAboutAnOverride(t *testing.T) {
	lines := captureLog(t)
	f := overrideFile{lineReader: lineReader{path: "x"}}
	_, first := parseOverride("please open")
	_, second := parseOverride("true")
	for _, err := range []error{first, first, second, second, nil, nil, first} {
		f.complain(err)
	}
	if len(*lines) != 3 {
		t.Errorf("%q", *lines)
	}
}
