package vm

import (
	"slices"
	"testing"
)

func TestParseCandidates(t *testing.T) {
	const control = "Package: libcap2\nVersion: 1:2.66-4\nDescription: a\n Version: 0\n\nPackage: iproute2\nSource: x\nVersion: 6.1.0-3\n"
	got, err := parseCandidates(control, []string{"iproute2", "libcap2"})
	if want := []debianPackage{{"iproute2", "6.1.0-3"}, {"libcap2", "1:2.66-4"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if got, err := parseCandidates(control, []string{"iproute2", "libelf1"}); err == nil {
		t.Errorf("got %q, want an error", got)
	}
}
