package probe

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/klog/v2"
)

// overrideFile is where an operator overrules the probe. A file that cannot be read or understood
// overrules nothing: opening or closing a gate takes a clear word.
type overrideFile struct {
	lineReader
	complaint string // logged last
}

// look returns the override in force, or nil.
func (f *overrideFile) look(ctx context.Context) *Override {
	l := f.read(ctx)
	if isAbsent(l.err) {
		f.complaint = ""
		return nil
	}
	o, err := parseOverride(l.text)
	if l.err != nil {
		o, err = nil, l.err
	}
	f.complain(err)
	return o
}

// complain logs a complaint once, until it changes.
func (f *overrideFile) complain(err error) {
	complaint := ""
	if err != nil {
		complaint = errText(err)
	}
	if complaint != f.complaint && complaint != "" {
		klog.InfoS("Ignoring the override file", "path", f.path, "reason", complaint)
	}
	f.complaint = complaint
}

// parseOverride reads "open why" or "closed why", with a colon after the word if somebody likes one.
// Without a reason it counts too: at night the word alone has to do.
func parseOverride(text string) (*Override, error) {
	word, why, _ := strings.Cut(strings.TrimSpace(text), " ")
	word = strings.TrimSuffix(word, ":")
	if word != "open" && word != "closed" {
		return nil, fmt.Errorf("first line %q; write open or closed and why", tidy(text))
	}
	if why = oneLine(why, 200); why == "" {
		why = "no reason given"
	}
	return &Override{Open: word == "open", Why: why}, nil
}
