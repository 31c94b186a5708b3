package status

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// document is what /status says.
type document struct {
	Version  string            `json:"version"`
	Node     string            `json:"node"`
	Gate     gateStatus        `json:"gate"`
	Probe    *probe.Result     `json:"probe"`
	Next     []step            `json:"next"`
	Volumes  map[string]int    `json:"volumes"`
	Refusals []refusalStatus   `json:"refusals"`
	Register registerStatus    `json:"registration"`
	Topology map[string]string `json:"topology"`
	Flags    map[string]string `json:"flags"`
}

type gateStatus struct {
	Open     bool   `json:"open"`
	Mode     string `json:"mode"`
	Since    string `json:"since"`
	Override string `json:"override,omitempty"`
	// Cause is why the gate is closed.
	Cause []string `json:"cause"`
	// Recovering: the cause is over, and the gate waits for more healthy probes.
	Recovering bool `json:"recovering,omitempty"`
}

type refusalStatus struct {
	Method   string `json:"method"`
	Code     string `json:"code"`
	Reason   string `json:"reason"`
	Observed bool   `json:"observed"`
	Count    uint64 `json:"count"`
}

type registerStatus struct {
	Registered  bool     `json:"registered"`
	Wanted      bool     `json:"wanted"`
	Obstacle    string   `json:"obstacle,omitempty"`
	Sustained   bool     `json:"sustainedTrouble"`
	Volumes     int      `json:"volumes"`
	RefusedKeys []string `json:"refusedTopologyKeys"`
}

// Page serves /status.
type Page struct {
	Sources
	Node string
	// Topology returns the injected segments.
	Topology func() map[string]string
	// Flags are the flags as they were set. None of them is secret.
	Flags map[string]string
}

// ServeHTTP implements http.Handler.
func (p Page) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(p.document())
}

func (p Page) document() document {
	h, calls, reg := p.Health(), p.Calls(), p.Registration()
	d := document{
		Version:  p.Version,
		Node:     p.Node,
		Gate:     gateStatus{Open: h.Open, Mode: p.mode(), Since: h.Since.UTC().Format(time.RFC3339), Cause: []string{}, Recovering: h.Recovering()},
		Probe:    &h.Result,
		Next:     next(h, reg, p.Node),
		Volumes:  map[string]int{"inFlight": calls.InFlight, "done": calls.Done, "unfinished": calls.Unfinished, "inherited": calls.Inherited},
		Refusals: []refusalStatus{},
		Register: registerStatus{reg.Registered, reg.Wanted, reg.Obstacle, reg.Sustained, reg.Volumes, append([]string{}, reg.RefusedKeys...)},
		Topology: p.Topology(),
		Flags:    p.Flags,
	}
	if h.Override != nil {
		d.Gate.Override = h.Override.String()
	}
	for _, t := range h.Cause {
		d.Gate.Cause = append(d.Gate.Cause, t.String())
	}
	for r, n := range calls.Refusals {
		d.Refusals = append(d.Refusals, refusalStatus{r.Method, r.Code.String(), r.Reason, r.Observed, n})
	}
	slices.SortFunc(d.Refusals, func(a, b refusalStatus) int {
		return cmp.Or(strings.Compare(a.Reason, b.Reason), strings.Compare(a.Method, b.Method), strings.Compare(a.Code, b.Code))
	})
	return d
}
