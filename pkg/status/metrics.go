// Package status answers one question: what does an operator see from outside? It turns the snapshots
// of the other packages into Prometheus metrics and into the JSON of /status, and decides nothing.
package status

import (
	"net/http"
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/proxy"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/registration"
)

// Sources are where the snapshots come from. Each is safe for concurrent use.
type Sources struct {
	Version string
	// Observe: the gate refuses nothing and only counts.
	Observe bool
	// Serving: the gate's own socket is in place.
	Serving      func() bool
	Health       func() *probe.Health
	Calls        func() proxy.Stats
	Registration func() registration.Stats
}

func (s Sources) mode() string {
	if s.Observe {
		return "observe"
	}
	return "enforce"
}

const prefix = "csi_rdma_gate_"

// The metrics, in the order in which the documentation has them. Labels are bounded: by the ports
// that are selected and by closed vocabularies.
var (
	open       = desc("open", "1 while the gate is open. A closed one refuses new mounts, unless it only observes.")
	lastChange = desc("last_change_timestamp_seconds", "When the gate last opened or closed, or else when it began, in seconds since 1970.")
	cause      = desc("cause", "1 for each port, or other subject of the node, that the gate is closed for, until it opens. "+
		"None while an override rules.", "subject", "reason")
	mode          = desc("mode", "1 for what the gate does when it is closed: enforce refuses new mounts, observe only counts and logs them.", "mode")
	serving       = desc("serving", "1 while the gate's own socket is in place.")
	override      = desc("override", "1 while the override file says so.", "state")
	verdict       = desc("verdict", "1 for the verdict of the newest probe of the node.", "verdict")
	trouble       = desc("trouble", "1 for each port, or other subject of the node, that the newest probe found not healthy.", "subject", "reason")
	portVerdict   = desc("port_verdict", "1 for the verdict of the newest probe of a selected port.", "device", "port", "verdict")
	probes        = desc("probes_total", "Probes by the node's verdict.", "verdict")
	probeDuration = desc("probe_duration_seconds", "Time that probes took.")
	changes       = desc("changes_total", "How often the gate opened or closed.")
	refusals      = desc("refusals_total", "Calls that the gate answered instead of the driver.", "method", "code", "reason")
	observed      = desc("observed_refusals_total", "Calls that the gate would have answered if it did not only observe.", "method", "code", "reason")
	volumes       = desc("volumes", "Volumes by what is known of them; one can be in several states.", "state")
	registered    = desc("registered", "1 while the registration socket is in place.")
	confirmed     = desc("registration_confirmed", "1 while kubelet has confirmed the registration by the socket in place.")
	wanted        = desc("registration_wanted", "1 while kubelet should know the driver, 0 while it should not because of lasting trouble.")
	registrations = desc("registrations_total", "Registration sockets put in place.")
	deregistered  = desc("deregistrations_total", "Deregistrations because of lasting trouble.")
	failures      = desc("registration_failures_total", "Registrations that kubelet reported as failed.")
	refusedKeys   = desc("topology_refused_keys", "Topology keys left out because the node has them with another value.")
	buildInfo     = desc("build_info", "1, with what was built.", "version", "goversion")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefix+name, help, labels, nil)
}

// Collector makes the metrics from the snapshots of the moment in which it is asked.
type Collector struct{ Sources }

// Describe implements prometheus.Collector.
func (c Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		open, lastChange, cause, mode, serving, override, verdict, trouble, portVerdict, probes, probeDuration, changes,
		refusals, observed, volumes, registered, confirmed, wanted, registrations, deregistered, failures, refusedKeys, buildInfo,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	out := emitter{ch}
	for _, m := range []string{"enforce", "observe"} {
		out.flag(mode, m == c.mode(), m)
	}
	out.flag(serving, c.Serving())
	out.health(c.Health())
	out.calls(c.Calls())
	out.registration(c.Registration())
	out.gauge(buildInfo, 1, c.Version, runtime.Version())
}

type emitter struct{ ch chan<- prometheus.Metric }

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (e emitter) flag(d *prometheus.Desc, v bool, labels ...string) {
	n := 0.0
	if v {
		n = 1
	}
	e.gauge(d, n, labels...)
}

func (e emitter) counter(d *prometheus.Desc, v uint64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (e emitter) health(h *probe.Health) {
	e.flag(open, h.Open)
	e.gauge(lastChange, float64(h.Since.Unix()))
	e.troubles(cause, h.Cause)
	e.flag(override, h.Override != nil && h.Override.Open, "open")
	e.flag(override, h.Override != nil && !h.Override.Open, "closed")
	for _, v := range []probe.Verdict{probe.Healthy, probe.Unhealthy, probe.Unknown} {
		e.flag(verdict, h.Verdict == v, v.String())
		e.counter(probes, h.Probes[v], v.String())
		for i := range h.Ports {
			p := &h.Ports[i]
			e.flag(portVerdict, p.Verdict == v, p.Device, strconv.Itoa(p.Number), v.String())
		}
	}
	e.troubles(trouble, h.Troubles())
	e.ch <- prometheus.MustNewConstSummary(probeDuration, h.Probes[0]+h.Probes[1]+h.Probes[2], h.ProbeTime.Seconds(), nil)
	e.counter(changes, h.Changes)
}

func (e emitter) troubles(d *prometheus.Desc, troubles []probe.Trouble) {
	seen := map[probe.Trouble]bool{}
	for _, t := range troubles {
		if t.Detail = ""; !seen[t] { // two node checks can have one subject and one Reason
			seen[t] = true
			e.flag(d, true, t.Subject, string(t.Reason))
		}
	}
}

func (e emitter) calls(st proxy.Stats) {
	for r, n := range st.Refusals {
		d := refusals
		if r.Observed {
			d = observed
		}
		e.counter(d, n, r.Method, r.Code.String(), r.Reason)
	}
	for state, n := range map[string]int{"in_flight": st.InFlight, "done": st.Done, "unfinished": st.Unfinished, "inherited": st.Inherited} {
		e.gauge(volumes, float64(n), state)
	}
}

func (e emitter) registration(st registration.Stats) {
	e.flag(registered, st.Registered)
	e.flag(confirmed, st.Confirmed)
	e.flag(wanted, st.Wanted)
	e.counter(registrations, st.Registrations)
	e.counter(deregistered, st.Deregistrations)
	e.counter(failures, st.Refusals)
	e.gauge(refusedKeys, float64(len(st.RefusedKeys)))
}

// Handler serves /metrics.
func Handler(s Sources, operations prometheus.Gatherer) http.Handler {
	return promhttp.HandlerFor(gatherer(s, operations), promhttp.HandlerOpts{})
}

func gatherer(s Sources, operations prometheus.Gatherer) prometheus.Gatherer {
	registry := prometheus.NewRegistry()
	registry.MustRegister(Collector{s})
	return prometheus.Gatherers{registry, operations}
}
