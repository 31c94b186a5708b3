package child

import (
	"bytes"
	"sync"
)

// Tail is a writer that keeps the last lines written to it, for the moment when something went
// wrong. It is safe for concurrent use.
type Tail struct {
	// Lines is how many to keep.
	Lines int

	mu   sync.Mutex
	kept [][]byte
	part []byte
}

func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.part = append(t.part, b...)
	for {
		line, rest, ok := bytes.Cut(t.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		t.kept = append(t.kept, bytes.Clone(line))
		if len(t.kept) > t.Lines {
			t.kept = t.kept[1:]
		}
		t.part = rest
	}
}

// Last returns the lines kept.
func (t *Tail) Last() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := make([]string, len(t.kept))
	for i, l := range t.kept {
		lines[i] = string(l)
	}
	return lines
}
