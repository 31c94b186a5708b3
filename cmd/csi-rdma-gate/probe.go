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
func runProbe(args []string, stdout io.Writer) int {
	fs, o := newFlags()
	output := fs.String("o", "table", "output `format`: table or json")
	switch done, err := parse(fs, o, args); {
	case err != nil:
		return complain(err, probeBadFlags)
	case done:
		return probeHealthy
	}
	if err := oneOf("o", *output, "table", "json"); err != nil {
		return complain(err, probeBadFlags)
	}
	c, err := o.probeConfig()
	if err != nil {
		return complain(err, probeBadFlags)
	}
	result := probe.New(c).Probe(context.Background(), true)
	if err := printResult(stdout, result, *output); err != nil {
		return complain(err, probeBadFlags)
	}
	switch result.Verdict {
	case probe.Healthy:
		return probeHealthy
	case probe.Unhealthy:
		return probeUnhealthy
	default:
		return probeUnknown
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
