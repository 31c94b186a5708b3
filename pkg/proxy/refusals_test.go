package proxy

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"google.golang.org/grpc/codes"
	"k8s.io/klog/v2"
)

// captureLog returns what has been logged so far. It collects until the test ends.
func captureLog(t *testing.T) func() []string {
	var mu sync.Mutex
	var lines []string
	t.Cleanup(klog.CaptureState().Restore)
	klog.SetLogger(funcr.New(func(_, args string) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, strings.TrimPrefix(args, `"level"=0 "msg"=`))
	}, funcr.Options{}))
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(lines)
	}
}

var downRefusal = Refusal{Method: "NodeStageVolume", Code: codes.FailedPrecondition, Reason: "PhysLinkDown"}

// Every refusal is in the log within a minute: by itself or in a sum.
func TestAThousandRefusalsAreSummedUpOnceAMinute(t *testing.T) {
	lines := captureLog(t)
	synctest.Test(t, func(t *testing.T) {
		rs := refusals{node: "worker-7"}
		if !rs.count(downRefusal) {
			t.Error("the first one has no line of its own")
		}
		time.Sleep(time.Second / 2)
		for range 999 {
			if rs.count(downRefusal) {
				t.Error("a line of its own within a minute of the last line")
			}
			time.Sleep(time.Second)
		}
		time.Sleep(2 * sumInterval)
		synctest.Wait()
		logged := lines()
		if len(logged) != 17 {
			t.Fatalf("%q", logged)
		}
		const last = `"Refused more of the same" "node"="worker-7" "method"="NodeStageVolume" "code"="FailedPrecondition" ` +
			`"reason"="PhysLinkDown" "calls"=39 "total"=1000`
		if logged[16] != last {
			t.Errorf("the last line is %s", logged[16])
		}
		if !rs.count(downRefusal) {
			t.Error("after a minute without any, one is summed up instead of being logged")
		}
		if counts := rs.counts(); len(counts) != 1 || counts[downRefusal] != 1001 {
			t.Errorf("counted %v", counts)
		}
	})
}

func TestNoRefusalIsLeftUnsaidAtShutdown(t *testing.T) {
	lines := captureLog(t)
	rs := refusals{}
	observed := downRefusal
	observed.Observed = true
	rs.count(downRefusal) // gets a line of its own
	for range 3 {
		rs.count(observed)
	}
	rs.sumUpAll()
	rs.sumUpAll()
	const want = `"Would have refused more of the same" "node"="" "method"="NodeStageVolume" "code"="FailedPrecondition" ` +
		`"reason"="PhysLinkDown" "calls"=2 "total"=3`
	if logged := lines(); len(logged) != 1 || logged[0] != want {
		t.Errorf("%q", logged)
	}
}

func TestNothingIsRememberedOfARefusedVolume(t *testing.T) {
	r := newRig(t, nil)
	r.health.set(closed())
	for i := range 1000 {
		wantCode(t, "stage", r.stage(fmt.Sprint("v", i), fmt.Sprint("/s/", i)), codes.FailedPrecondition)
		wantCode(t, "publish", r.publish(fmt.Sprint("v", i), fmt.Sprint("/t/", i)), codes.FailedPrecondition)
	}
	if vs := r.volumes; len(vs.known) != 0 || vs.paths != 0 || vs.calls != 0 {
		t.Errorf("%d volumes, %d paths, %d calls are known", len(vs.known), vs.paths, vs.calls)
	}
	if kinds := r.gate.refusals.counts(); len(kinds) != 2 {
		t.Errorf("%d kinds of refusals are known: %v", len(kinds), kinds)
	}
}
