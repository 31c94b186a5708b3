package probe

import (
	"context"
	"path"
	"slices"
	"strings"
	"time"
)

const moduleDir = "sys/module"

// moduleCheck wants kernel modules to be loaded. What it found holds until it looks again.
type moduleCheck struct {
	reader  reader
	modules []string
	call    call[[]Trouble]
	last    []Trouble
	at      time.Time
}

func (m *moduleCheck) troubles(ctx context.Context, full bool) []Trouble {
	if !full && !m.at.IsZero() && time.Since(m.at) < refreshEvery {
		return slices.Clone(m.last)
	}
	found, ok := m.call.do(ctx, m.look)
	if !ok {
		m.at = time.Time{}
		return []Trouble{{Subject: "/" + moduleDir, Reason: ProbeStuck, Detail: "reading did not return"}}
	}
	m.last, m.at = found, time.Now()
	return slices.Clone(found)
}

func (m *moduleCheck) look() []Trouble {
	var troubles []Trouble
	for _, name := range m.modules {
		// Dashes and underscores are the same to modprobe; sysfs has underscores.
		dir := path.Join(moduleDir, strings.ReplaceAll(name, "-", "_"))
		switch _, err := m.reader.lstat(dir); {
		case isAbsent(err):
			troubles = append(troubles, Trouble{Subject: name, Reason: ModuleMissing, Detail: "/" + dir + " does not exist"})
		case err != nil:
			troubles = append(troubles, Trouble{Subject: name, Reason: AttributeUnreadable, Detail: "/" + dir + ": " + errText(err)})
		}
	}
	return troubles
}
