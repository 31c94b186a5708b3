package harness

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// row is a step that has ended.
type row struct {
	scenario, step string
	took           time.Duration
	result         string
	failed         bool
}

// Table is what a run says in the end, a line for each step. It is safe for concurrent use.
type Table struct {
	Title string
	// Live gets each line at once, too.
	Live io.Writer

	mu   sync.Mutex
	rows []row
}

// Add notes a step that is of no scenario. Of an error the table has no more than the beginning of its
// first line.
func (t *Table) Add(scenario, step string, took time.Duration, err error) {
	r := row{scenario: scenario, step: step, took: took, result: "ok"}
	if err != nil {
		r.result, r.failed = "FAILED: "+shortened(err.Error()), true
		if r.result != "FAILED: "+err.Error() {
			_, _ = fmt.Fprintln(t.Live, err)
		}
	}
	t.add(r)
}

// maxError keeps a line of the table on a wide terminal's line.
const maxError = 120

func shortened(text string) string {
	first, _, _ := strings.Cut(text, "\n")
	if runes := []rune(first); len(runes) > maxError {
		first = string(runes[:maxError-1]) + "…"
	}
	return first
}

func (t *Table) add(r row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = append(t.rows, r)
	_, _ = fmt.Fprintf(t.Live, "%s  %s: %s  (%s)\n", r.scenario, r.step, r.result, seconds(r.took))
}

// Failed says whether a step has failed.
func (t *Table) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.rows {
		if r.failed {
			return true
		}
	}
	return false
}

// Print writes the table in columns below its title.
func (t *Table) Print(w io.Writer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = fmt.Fprintf(w, "\n%s\n", t.Title)
	lines := [][]string{{"SCENARIO", "STEP", "TIME", "RESULT"}}
	for _, r := range t.rows {
		lines = append(lines, []string{r.scenario, r.step, seconds(r.took), r.result})
	}
	widths := make([]int, 3) // the last column needs none
	for _, cells := range lines {
		for i := range widths {
			widths[i] = max(widths[i], utf8.RuneCountInString(cells[i]))
		}
	}
	for _, cells := range lines {
		line := fmt.Sprintf("%-*s  %-*s  %*s  %s", widths[0], cells[0], widths[1], cells[1], widths[2], cells[2], cells[3])
		_, _ = fmt.Fprintln(w, strings.TrimRight(line, " "))
	}
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
