package harness

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestTableShowsStepsInColumns(t *testing.T) {
	table := &Table{Title: "Kubernetes 1.2.3", Live: io.Discard}
	table.Add("node", "Ready", 4200*time.Millisecond, nil)
	table.add(row{scenario: "story", step: "the pod’s container runs", took: 61 * time.Second, result: "ok, 3 s after"})
	if table.Failed() {
		t.Error("failed without a failure")
	}
	table.Add("story", "end", 0, errors.New("it did not\nand this is why"))
	if !table.Failed() {
		t.Error("not failed after a failure")
	}
	var b strings.Builder
	table.Print(&b)
	const want = `
Kubernetes 1.2.3
SCENARIO  STEP                        TIME  RESULT
node      Ready                      4.2 s  ok
story     the pod’s container runs  61.0 s  ok, 3 s after
story     end                        0.0 s  FAILED: it did not
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
}

func TestTableTellsAtOnceWhatItShortens(t *testing.T) {
	var live strings.Builder
	table := &Table{Live: &live}
	table.Add("story", "end", 0, errors.New("it did not\nand this is why"))
	long := strings.Repeat("é", 200)
	table.Add("story", "beginning", 0, errors.New(long))
	want := "it did not\nand this is why\nstory  end: FAILED: it did not  (0.0 s)\n" +
		long + "\nstory  beginning: FAILED: " + strings.Repeat("é", 119) + "…  (0.0 s)\n"
	if live.String() != want {
		t.Errorf("got\n%s\nwant\n%s", live.String(), want)
	}
}
