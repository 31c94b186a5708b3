package main

import (
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	var sorted []time.Duration
	for n := range 20 {
		sorted = append(sorted, time.Duration(n+1))
	}
	for p, want := range map[int]time.Duration{1: 1, 5: 1, 6: 2, 50: 10, 95: 19, 96: 20, 100: 20} {
		if got := percentile(sorted, p); got != want {
			t.Errorf("percentile %d is %d, want %d", p, got, want)
		}
	}
	if got := percentile(sorted[:1], 50); got != 1 {
		t.Errorf("the median of one value is %d", got)
	}
}
