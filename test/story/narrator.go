package story

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
)

// narrator writes the story. A reader that has gone away does not end it.
type narrator struct {
	out   io.Writer
	start time.Time
	// last is the retry shown last: a repeated one is not shown again, as events fold.
	last string
}

func (n *narrator) print(format string, args ...any) {
	_, _ = fmt.Fprintf(n.out, format, args...)
}

func (n *narrator) title(text string) { n.print("\n%s\n\n", text) }

// line is "who  what".
func (n *narrator) line(who, format string, args ...any) {
	n.print("        %-9s %s\n", who, fmt.Sprintf(format, args...))
}

func (n *narrator) step(number int, title string) {
	n.last = ""
	n.print("\n%5.1fs  %d. %s\n", time.Since(n.start).Seconds(), number, title)
}

// event prints a mount error exactly as the pod's event has it, on one line.
func (n *narrator) event(err error) {
	n.print("        %-9s Warning  FailedMount  %s\n", "event", err)
}

// retry prints an error after which kubelet tries again by itself.
func (n *narrator) retry(err error) {
	if text := err.Error(); text != n.last {
		n.last = text
		n.line("kubelet", "tries again after: %s", text)
	}
}

func (n *narrator) failed(logs map[string]*child.Tail) {
	for _, name := range slices.Sorted(maps.Keys(logs)) {
		n.print("\nThe last lines of %s:\n", name)
		for _, l := range logs[name].Last() {
			n.print("  %s\n", l)
		}
	}
	n.print("\n")
}

func (n *narrator) done(text string) {
	n.print("\n%5.1fs  %s\n\n", time.Since(n.start).Seconds(), text)
}
