package probe

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// healthFile is another check's word, read at every probe.
type healthFile struct {
	lineReader
	maxAge time.Duration
}

func newHealthFile(path string, maxAge time.Duration) *healthFile {
	if maxAge <= 0 {
		maxAge = time.Minute
	}
	return &healthFile{lineReader: lineReader{path: path}, maxAge: maxAge}
}

func (h *healthFile) troubles(ctx context.Context, _ bool) []Trouble {
	f := judgeHealthFile(h.read(ctx), time.Now(), h.maxAge)
	if f.reason == "" {
		return nil
	}
	return []Trouble{{Subject: h.path, Reason: f.reason, Detail: f.detail}}
}

// judgeHealthFile never goes by the age alone to call anything broken: a check that stopped running
// says nothing about the hardware.
func judgeHealthFile(l line, now time.Time, maxAge time.Duration) finding {
	verdict, why, _ := strings.Cut(l.text, " ")
	verdict = strings.TrimSuffix(verdict, ":")
	switch {
	case isAbsent(l.err):
		return finding{CheckStale, "no such file"}
	case l.err != nil:
		return finding{CheckStale, errText(l.err)}
	case now.Sub(l.written) > maxAge:
		return finding{CheckStale, fmt.Sprintf("written %s, more than %v ago", l.written.UTC().Format(time.RFC3339), maxAge)}
	case l.written.Sub(now) > maxAge:
		return finding{CheckStale, fmt.Sprintf("written %s, which is yet to come", l.written.UTC().Format(time.RFC3339))}
	case verdict == "ERROR":
		return finding{CheckFailed, tidy(why)}
	case verdict != "OK":
		return finding{AttributeUnreadable, fmt.Sprintf("first line %q is neither OK nor ERROR and a text", tidy(l.text))}
	}
	return finding{}
}
