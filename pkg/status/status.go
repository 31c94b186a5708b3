package status

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/proxy"
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
	// OverrideIgnored is why an override file does not count.
	OverrideIgnored string `json:"overrideIgnored,omitempty"`
	// Serving: the gate's own socket is in place.
	Serving bool `json:"serving"`
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
	Confirmed   bool     `json:"confirmed"`
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
	return document{
		Version: p.Version,
		Node:    p.Node,
		Gate:    p.gate(h),
		Probe:   &h.Result,
		Next:    next(h, reg, p.Node),
		Volumes: map[string]int{
			"inFlight": calls.InFlight, "done": calls.Done, "unfinished": calls.Unfinished, "inherited": calls.Inherited,
		},
		Refusals: refusalsOf(calls),
		Register: registerStatus{
			Registered:  reg.Registered,
			Confirmed:   reg.Confirmed,
			Wanted:      reg.Wanted,
			Obstacle:    reg.Obstacle,
			Sustained:   reg.Sustained,
			Volumes:     reg.Volumes,
			RefusedKeys: append([]string{}, reg.RefusedKeys...),
		},
		Topology: p.Topology(),
		Flags:    p.Flags,
	}
}

func (p Page) gate(h *probe.Health) gateStatus {
	g := gateStatus{
		Open:            h.Open,
		Mode:            p.mode(),
		Serving:         p.Serving(),
		Since:           h.Since.UTC().Format(time.RFC3339),
		Cause:           []string{},
		Recovering:      h.Recovering(),
		OverrideIgnored: h.OverrideIgnored,
	}
	if h.Override != nil {
		g.Override = h.Override.String()
	}
	for _, t := range h.Cause {
		g.Cause = append(g.Cause, t.String())
	}
	return g
}

// refusalsOf are in the same order each time.
func refusalsOf(calls proxy.Stats) []refusalStatus {
	all := []refusalStatus{}
	for r, n := range calls.Refusals {
		all = append(all, refusalStatus{r.Method, r.Code.String(), r.Reason, r.Observed, n})
	}
	slices.SortFunc(all, func(a, b refusalStatus) int {
		return cmp.Or(cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Method, b.Method), cmp.Compare(a.Code, b.Code))
	})
	return all
}
