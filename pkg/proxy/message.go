package proxy

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// maxMessage keeps a message, with what decide appends to it, below 1000 bytes. Kubelet puts
// it into an event, whose text the API server limits to 1024.
const maxMessage = 860

// refusal is the line that a pod's event shows. It depends on nothing but the node, the volume
// and the snapshot's Since, Cause and Override, so that it stays the same to the byte while the
// Reasons do: kubelet folds equal events into one.
func (g *gate) refusal(r *request, h *probe.Health) string {
	verb := "staged"
	if r.method == csi.Node_NodePublishVolume_FullMethodName {
		verb = "published"
	}
	head := fmt.Sprintf("RDMA not usable on node %s since %s: ", g.NodeName, h.Since.UTC().Format(time.RFC3339))
	tail := fmt.Sprintf("; volume %s was not %s, the CSI driver was not called; retried automatically", quote(r.volume, 200), verb)
	return head + cause(h, maxMessage-len(head)-len(tail)) + tail
}

// cause says why the gate is closed in at most limit bytes.
func cause(h *probe.Health, limit int) string {
	if h.Override != nil {
		return shorten("closed by the override file: "+OneLine(h.Override.Why), limit)
	}
	prefix := ""
	if h.Recovering() {
		prefix = "healthy again, waiting for more probes to confirm it after "
	}
	var b strings.Builder
	b.WriteString(prefix)
	for i, t := range h.Cause {
		text := t.String()
		if i > 0 {
			text = ", " + text
		}
		more := fmt.Sprintf(", and %d more", len(h.Cause)-i)
		if i > 0 && b.Len()+len(text)+len(more) > limit {
			b.WriteString(more)
			break
		}
		b.WriteString(shorten(text, limit-len(prefix)-len(more)))
	}
	return b.String()
}

// refused is the final answer to a call that makes a mount. The details name what fails.
func refused(message string, h *probe.Health) error {
	s := status.New(codes.FailedPrecondition, message)
	details := &errdetails.PreconditionFailure{}
	for _, t := range h.Cause {
		details.Violations = append(details.Violations, &errdetails.PreconditionFailure_Violation{
			Type: string(t.Reason), Subject: t.Subject, Description: t.Detail,
		})
	}
	if h.Override != nil {
		details.Violations = append(details.Violations, &errdetails.PreconditionFailure_Violation{
			Type: "Override", Description: h.Override.Why,
		})
	}
	if with, err := s.WithDetails(details); err == nil {
		s = with
	}
	return s.Err()
}

// quote makes any text safe for one line and at most limit bytes long.
func quote(s string, limit int) string {
	q := strconv.Quote(s)
	if len(q) > limit {
		q = shorten(q, limit-1) + `"`
	}
	return q
}

// OneLine replaces what would break a line of the log or of a message.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
}

// shorten cuts at a rune's border.
func shorten(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	const mark = "…"
	cut := max(0, limit-len(mark))
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}
