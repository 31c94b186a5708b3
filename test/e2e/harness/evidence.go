package harness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// show writes what one needs to understand a failure. What cannot be had is said, too.
func (s *Scene) show() {
	// The step's own context may have ended.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.Node.Context()), time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"get", "pods", "--all-namespaces", "--output=wide"},
		{"get", "csinode", "--output=yaml"},
		{"get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"},
		{"--namespace=kube-system", "logs", "--selector=" + Selector, "--container=gate", "--tail=60"},
		{"--namespace=kube-system", "logs", "--selector=" + Selector, "--container=driver", "--tail=40"},
	} {
		out, err := s.Kubectl(ctx, args...)
		if err != nil {
			out += err.Error()
		}
		s.showText("kubectl "+strings.Join(args, " "), out)
	}
	s.showText("the end of kubelet's log", kubeletTail(s.Node.LogTail("kubelet", 500)))
}

// kubeletTail is the end of kubelet's log without what it says all the time: it does not find the file
// system that it was told not to look after.
func kubeletTail(log string) string {
	lines := strings.Split(log, "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return strings.Contains(line, "eviction_manager.go") || strings.Contains(line, "cri_stats_provider.go")
	})
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

func (s *Scene) showText(what, text string) {
	_, _ = fmt.Fprintf(s.evidence, "\n--- %s\n%s\n", what, strings.TrimRight(text, "\n"))
}
