package probe

import (
	"fmt"
	"strconv"
	"strings"
)

// checkRate compares an active port's rate; the rate of any other means nothing.
func checkRate(rate attr, minGbps float64) finding {
	gbps, err := parseRate(rate)
	if err != nil {
		return unreadable("rate", err)
	}
	if gbps < minGbps {
		return findingf(RateBelowMinimum, "rate %v, at least %g Gb/sec required", rate, minGbps)
	}
	return finding{}
}

// parseRate reads "400 Gb/sec (4X NDR)" and "2.5 Gb/sec (1X SDR)". Old drivers write "0 GB/sec".
func parseRate(a attr) (float64, error) {
	if a.err != nil {
		return 0, a.err
	}
	fields := strings.Fields(a.text)
	if len(fields) < 2 || !strings.EqualFold(fields[1], "Gb/sec") {
		return 0, fmt.Errorf("%q is not a rate in Gb/sec", tidy(a.text))
	}
	gbps, err := strconv.ParseFloat(fields[0], 64)
	if err != nil || !(gbps >= 0 && gbps < 1e6) {
		return 0, fmt.Errorf("%q is not a rate in Gb/sec", tidy(a.text))
	}
	return gbps, nil
}
