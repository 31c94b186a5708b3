package probe

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// In the section of a Reason the documentation quotes the gate, indented by four. Each quote has to be what the gate says of one of
// the cases, or of one of the situations below that no case can tell of.
func TestDocumentationQuotesRealTroubles(t *testing.T) {
	doc, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	said := everyTrouble(t)
	_, reasons, _ := strings.Cut(string(doc), "\n## Reasons\n")
	reasons, _, _ = strings.Cut(reasons, "\n## ")
	for section := range strings.SplitSeq(reasons, "\n### ") {
		reason, text, isReason := strings.Cut(section, "\n")
		if !isReason || reason == "" {
			continue // what stands before the first one
		}
		quotes := regexp.MustCompile(`(?m)^ {4}\S.*(\n {6}\S.*)*`).FindAllString(text, -1)
		if len(quotes) == 0 {
			t.Errorf("%s: no quote", reason)
		}
		for _, quote := range quotes {
			if quote = strings.Join(strings.Fields(quote), " "); !said[quote] {
				t.Errorf("%s: the gate does not say %q", reason, quote)
			}
		}
	}
}

func everyTrouble(t *testing.T) map[string]bool {
	said := map[string]bool{}
	add := func(troubles ...Trouble) {
		for _, trouble := range troubles {
			said[trouble.String()] = true
		}
	}
	files, err := filepath.Glob("testdata/*/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		c := loadCase(t, file)
		add(newProber(c.config, treeOf(t, c.files)).Probe(t.Context(), true).Troubles()...)
	}

	slow := newTree(t, roce)
	slow.set("sys/class/infiniband/mlx5_0/ports/1/rate", "50 Gb/sec (2X EDR)")
	strict := Config{Selectors: selectors(t, "mlx5_0"), MinRateGbps: 100, Modules: []string{"rpcrdma"}}
	add(newProber(strict, slow).Probe(t.Context(), true).Troubles()...)
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		defer tr.block(state0)()
		add(newProber(Config{}, tr).Probe(t.Context(), true).Troubles()...)
	})
	add(NewMonitor(nil, MonitorConfig{}).Health().Troubles()...)

	now := time.Now()
	for _, l := range []line{
		{text: "ERROR path to 10.1.0.1 lost", written: now},
		{text: "degraded", written: now},
		{err: fs.ErrNotExist},
	} {
		f := judgeHealthFile(l, now, time.Minute)
		add(Trouble{"/run/rdma/health", f.reason, f.detail})
	}

	kubelet := &resourceCheck{resources: []string{"rdma/hca"}, socket: "/var/lib/kubelet/pod-resources/kubelet.sock"}
	add(kubelet.judge(&kubeletAnswer{err: os.NewSyscallError("connect", syscall.ECONNREFUSED), at: now})...)
	add(kubelet.judge(&kubeletAnswer{settling: true, at: now})...)
	missing := kubelet.judge(&kubeletAnswer{at: now})
	exonerate(missing)
	add(missing...)
	return said
}
