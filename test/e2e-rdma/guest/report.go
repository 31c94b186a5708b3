package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e-rdma/vm"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
)

// report is what a run says, line by line. It is safe for concurrent use.
type report struct {
	verbose bool

	mu     sync.Mutex
	w      io.Writer
	logs   map[string]*child.Tail
	failed bool
}

func newReport(w io.Writer, verbose bool) *report {
	return &report{w: w, verbose: verbose, logs: make(map[string]*child.Tail)}
}

const rowFormat = "%-45s  %-9s  %-31s  %12s  %10s"

func (r *report) heading(text string) {
	r.line("")
	r.line("%s", text)
}

func (r *report) columns() {
	r.line(rowFormat, "FAULT", "VERDICT", "REASON", "CLOSED AFTER", "OPEN AFTER")
}

// row is one fault. The times are from the change to the answer of the gate that shows it.
func (r *report) row(fault, verdict, reason string, closedAfter, openAfter time.Duration) {
	r.line(rowFormat, fault, verdict, reason, milliseconds(closedAfter), milliseconds(openAfter))
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

func (r *report) line(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	_, _ = fmt.Fprintln(r.w, strings.TrimRight(text, " ")) // nobody else to tell
}

// fail notes a failure; the run may go on.
func (r *report) fail(what string, err error) {
	r.line("FAILED  %s: %v", what, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

// died takes the end of a process that should have lived.
func (r *report) died(err error) { r.fail("process", err) }

// evidence shows what the kernel says of a device just now.
func (r *report) evidence(w *wire) {
	for _, line := range evidence(w) {
		r.line("        %s", line)
	}
}

// log is where a process writes its log. It is shown as it comes or, when something has failed, the
// end of it.
func (r *report) log(name string) io.Writer {
	if r.verbose {
		return &logWriter{report: r, name: name}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.logs[name] == nil {
		r.logs[name] = &child.Tail{Lines: 40}
	}
	return r.logs[name]
}

// end writes the result.
func (r *report) end() {
	r.mu.Lock()
	failed, logs := r.failed, r.logs
	r.mu.Unlock()
	if !failed {
		r.line(vm.Passed)
		return
	}
	for name, log := range logs {
		r.line("The last lines of the %s:", name)
		for _, l := range log.Last() {
			r.line("  %s", l)
		}
	}
	r.line(vm.Failed)
}

type logWriter struct {
	report *report
	name   string
}

func (l *logWriter) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		l.report.line("%-6s  %s", l.name, strings.TrimRight(line, "\n"))
	}
	return len(b), nil
}
