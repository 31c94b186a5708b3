package probe

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

type jsonResult struct {
	Verdict Verdict    `json:"verdict"`
	Reason  Reason     `json:"reason"`
	Message string     `json:"message"`
	Ports   []jsonPort `json:"ports"`
}

type jsonPort struct {
	Device  string  `json:"device"`
	Port    int     `json:"port"`
	Verdict Verdict `json:"verdict"`
	Reason  Reason  `json:"reason"`
	Message string  `json:"message"`
}

// MarshalJSON is the object that "probe -o json" prints.
func (r Result) MarshalJSON() ([]byte, error) {
	out := jsonResult{
		Verdict: r.Verdict,
		Reason:  r.Reason,
		Message: joinTroubles(r.Troubles()),
		Ports:   make([]jsonPort, len(r.Ports)),
	}
	for i, p := range r.Ports {
		out.Ports[i] = jsonPort{p.Device, p.Number, p.Verdict, p.Reason, p.Detail}
	}
	return json.Marshal(out)
}

// WriteTable writes a row for each port, then what each trouble means. paint, when not nil, may put
// the text of a verdict into colour.
func (r *Result) WriteTable(w io.Writer, paint func(Verdict, string) string) error {
	if paint == nil {
		paint = func(_ Verdict, text string) string { return text }
	}
	var b strings.Builder
	if len(r.Ports) > 0 {
		r.writePorts(&b, paint)
	}
	if len(r.Ports) == 0 && r.Verdict == Healthy {
		b.WriteString("no RDMA device, which is allowed here\n")
	}
	verdict := strings.TrimSpace(r.Verdict.String() + " " + string(r.Reason))
	fmt.Fprintf(&b, "node: %s\n", paint(r.Verdict, verdict))
	for _, t := range r.Troubles() {
		fmt.Fprintf(&b, "%v. %s.\n", t, t.Reason.Advice())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Result) writePorts(w io.Writer, paint func(Verdict, string) string) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tPORT\tLINK LAYER\tNETDEV\tSTATE\tRATE\tGID\tVERBS\tVERDICT")
	for _, p := range r.Ports {
		row := []string{
			p.Device, fmt.Sprint(p.Number), string(p.LinkLayer), strings.Join(p.Netdevs, ","), bothStates(p),
			p.Rate, p.GID, p.Verbs,
		}
		for i, cell := range row {
			if row[i] = tidy(cell); row[i] == "" {
				row[i] = "-"
			}
		}
		// The last column is not padded, so colour does no harm to the others.
		verdict := paint(p.Verdict, strings.TrimSpace(p.Verdict.String()+" "+string(p.Reason)))
		fmt.Fprintln(tw, strings.Join(append(row, verdict), "\t"))
	}
	tw.Flush() // a strings.Builder takes everything
}

// bothStates leaves the ids out: here a person reads.
func bothStates(p Port) string {
	_, state, _ := strings.Cut(p.State, ":")
	_, phys, _ := strings.Cut(p.PhysState, ":")
	return strings.Trim(strings.TrimSpace(state)+"/"+strings.TrimSpace(phys), "/")
}

// Advice says in one sentence, without its full stop, where to look next.
func (r Reason) Advice() string {
	switch r {
	case PhysLinkDown:
		return "Look at the cable, the transceiver and the switch port, and whether the port is disabled"
	case PortNotActive:
		return "The link is trained but the port is not in service: look at the subnet manager, or on a virtual function at its GUID and link policy"
	case NoSubnetManager:
		return "Look whether a subnet manager runs on this fabric and reaches this port"
	case GIDMissing:
		return "Look whether the interface is up and, on a virtual function, whether it has a GUID"
	case RoCEv2GIDMissing:
		return "Look at the interface's IP addresses and the RoCE mode of the port; clients would fall back to TCP"
	case NetdevMissing:
		return "Look whether the interface exists and, on InfiniBand, whether ib_ipoib is loaded"
	case NetdevNoCarrier:
		return "Look at the interface with `ip link`, then at its cable and switch port"
	case VerbsMissing:
		return "Look whether ib_uverbs is loaded and whether the host's /dev is mounted"
	case VerbsUnusable:
		return "The driver is going away or has been reloaded: look at the kernel log"
	case DeviceMissing:
		return "Look at the kernel log and `lspci` for the card, and at the selection for renamed devices; an interface is selected by netdev:NAME"
	case NoDevices:
		return "Look whether the card's driver is loaded and what the kernel log says of it"
	case NoSubsystem:
		return "Load the RDMA drivers"
	case RateBelowMinimum:
		return "The link has trained too slow: look at the cable, the transceiver and the switch port"
	case ModuleMissing:
		return "Load it with modprobe, and look why it was not loaded after a driver reload; if modprobe is content and this stays, the name " +
			"is an alias (xprtrdma is rpcrdma)"
	case ResourceNotAdvertised:
		return "`kubectl describe node` shows what kubelet advertises and the node's taints; the device plugin's log shows why it registers nothing"
	case CheckFailed:
		return "Look at the check that writes this file"
	case ProbeStuck:
		return "The driver or firmware does not answer: look at the kernel log"
	case VerbsNotPermitted:
		return "This container may not open the device; grant it, or check verbs instead of verbs-open"
	case NamespaceMismatch:
		return "Run in the host's network namespace, or mount the host's /sys"
	case DriverStateFixed:
		return "Nothing can be told from this driver; select other devices"
	case CheckStale:
		return "Look whether the check that writes this file still runs"
	case NotProbedYet:
		return "Wait for the first probe"
	default:
		return "Look at the kernel log, and whether the host's /sys is mounted whole; if it is kubelet that is silent, whether it runs and its directory is mounted"
	}
}
