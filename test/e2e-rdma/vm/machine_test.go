package vm

import (
	"io"
	"strings"
	"testing"
)

func TestCopyReportTakesTheResultOut(t *testing.T) {
	for name, tc := range map[string]struct{ in, report, result string }{
		"passed":    {"a\r\nb\r\n" + Passed + "\r\n", "a\nb\n", Passed},
		"failed":    {"a\n" + Failed + "\n", "a\n", Failed},
		"no result": {"a\nresult: pas", "a\nresult: pas\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var report strings.Builder
			if got := copyReport(&report, strings.NewReader(tc.in)); got != tc.result {
				t.Errorf("result %q, want %q", got, tc.result)
			}
			if report.String() != tc.report {
				t.Errorf("report %q, want %q", report.String(), tc.report)
			}
		})
	}
}

func TestPanicFinder(t *testing.T) {
	p := &panicFinder{w: io.Discard}
	for _, part := range []string{"[ 1.0] fine\n[ 1.1] Kernel pa", "nic - not syncing: why\r\n[ 1.2] Kernel panic again\n"} {
		if _, err := p.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	if want := "Kernel panic - not syncing: why"; p.found != want {
		t.Errorf("found %q, want %q", p.found, want)
	}
}
