package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
)

const gateBinary = "/bin/csi-rdma-gate"

// verdict is what "csi-rdma-gate probe" concludes.
type verdict struct {
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

var exitStatus = map[string]int{"healthy": 0, "unhealthy": 1, "unknown": 2}

// probe asks the subcommand, as an operator would, and holds it to its exit status.
func probe(flags ...string) (verdict, error) {
	var v verdict
	out, err := exec.Command(gateBinary, append([]string{"probe", "-o", "json"}, flags...)...).Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return v, err
	}
	if err := json.Unmarshal(out, &v); err != nil {
		return v, fmt.Errorf("probe -o json: %w", err)
	}
	got := 0
	if exit != nil {
		got = exit.ExitCode()
	}
	if want, ok := exitStatus[v.Verdict]; !ok || got != want {
		return v, fmt.Errorf("probe says %q and exits with %d", v.Verdict, got)
	}
	return v, nil
}

// expect is an error unless the subcommand comes to the same conclusion as the gate.
func (v verdict) expect(verdict, reason string) error {
	if v.Verdict != verdict || v.Reason != reason {
		return fmt.Errorf("probe says %s %s (%s), want %s %s", v.Verdict, v.Reason, v.Message, verdict, reason)
	}
	return nil
}
