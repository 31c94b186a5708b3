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
	monitored(t, healthy, MonitorConfig{NodeName: "worker-7", NoSelection: true}, func(b bench) {
		b.ticks(10)
		b.script.say(down)
		b.ticks(10)
		b.script.say(portSays(PhysLinkDown, "state 1: DOWN, phys_state 3: Disabled"))
		b.ticks(10)
		b.script.say(portSays(PortNotActive, "state 2: INIT"))
		b.ticks(10)
		b.script.say(healthy)
		b.ticks(10)
		time.Sleep(time.Minute)
	})
	want := []string{
		`"First look at RDMA ports" "node"="worker-7" "verdict"="healthy" "ports"="mlx5_0/1"`,
		`"No device is selected`,
		`"Gate opened" "node"="worker-7" "verdict"="healthy" "why"="RDMA is usable"`,
		`"RDMA trouble" "node"="worker-7" "subject"="mlx5_0/1" "reason"="PhysLinkDown" "detail"="state 1: DOWN, phys_state 2: Polling"`,
		`"Gate closed" "node"="worker-7" "verdict"="unhealthy" "why"="mlx5_0/1 PhysLinkDown (state 1: DOWN, phys_state 2: Polling)" ` +
			`"openSince"="2000-01-01T00:00:00Z" "openFor"="11s"`,
		`"RDMA trouble" "node"="worker-7" "subject"="mlx5_0/1" "reason"="PortNotActive" "detail"="state 2: INIT" ` +
			`"was"="PhysLinkDown" "since"="2000-01-01T00:00:11Z"`,
		`"RDMA trouble is over" "node"="worker-7" "subject"="mlx5_0/1" "was"="PortNotActive" "since"="2000-01-01T00:00:11Z" "lasted"="30s"`,
		`"Gate opened" "node"="worker-7" "verdict"="healthy" "why"="RDMA is usable" "closedSince"="2000-01-01T00:00:11Z" "closedFor"="32s"`,
	}
	if len(*lines) != len(want) {
		t.Fatalf("%d lines: %q", len(*lines), *lines)
	}
	for i, line := range *lines {
		if !strings.Contains(line, want[i]) { // the logger puts the level before it
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

func TestLogSaysOfAGateThatIsClosedFromTheStartWhy(t *testing.T) {
	lines := captureLog(t)
	monitored(t, down, MonitorConfig{}, func(b bench) { b.ticks(10) })
	if len(*lines) != 3 || !strings.Contains((*lines)[2], `"Gate closed" "node"="" "verdict"="unhealthy" "why"="mlx5_0/1 PhysLinkDown`) {
		t.Errorf("%q", *lines)
	}
}
