package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// Exit statuses of the probe command.
const (
	probeHealthy = iota
	probeUnhealthy
	probeUnknown
	probeBadFlags
)

// runProbe is "csi-rdma-gate probe": one look at the hardware, printed for people or as JSON.
func runProbe(ctx context.Context, args []string, stdout io.Writer) (int, error) {
	fs, o := newFlags()
	output := fs.String("o", "table", "output `format`: table or json")
	switch done, err := parse(fs, o, args, stdout); {
	case err != nil:
		return probeBadFlags, err
	case done:
		return probeHealthy, nil
	}
	if err := oneOf("o", *output, "table", "json"); err != nil {
		return probeBadFlags, err
	}
	c, err := o.probeConfig()
	if err != nil {
		return probeBadFlags, err
	}
	result := probe.New(c).Probe(ctx, true)
	if err := printResult(stdout, result, *output); err != nil {
		return probeBadFlags, err
	}
	switch result.Verdict {
	case probe.Healthy:
		return probeHealthy, nil
	case probe.Unhealthy:
		return probeUnhealthy, nil
	default:
		return probeUnknown, nil
	}
}

func printResult(w io.Writer, r *probe.Result, output string) error {
	if output == "table" {
		return r.WriteTable(w)
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(w, string(data))
	return err
}
