package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// BenchmarkProbe is one look at RoCE ports on disk, light as at every tick and full as every 30 s,
// beside virtual functions that are not selected.
func BenchmarkProbe(b *testing.B) {
	for _, kind := range []string{"light", "full"} {
		for _, ports := range []int{1, 8, 64} {
			for _, vfs := range []int{0, 512} {
				b.Run(fmt.Sprintf("%s/ports=%d/vfs=%d", kind, ports, vfs), func(b *testing.B) {
					p := benchProber(b, ports, vfs)
					for b.Loop() {
						p.Probe(b.Context(), kind == "full")
					}
				})
			}
		}
	}
}

func benchProber(b *testing.B, ports, vfs int) *Prober {
	var archive strings.Builder
	one, _, _ := strings.Cut(roce, "-- sys/class/infiniband/mlx5_1/")
	for i := range ports {
		archive.WriteString(strings.NewReplacer("mlx5_0", fmt.Sprintf("mlx5_%d", i), "ens1f0", fmt.Sprintf("ens%df0", i)).Replace(one))
		fmt.Fprintf(&archive, "-- sys/class/net/ens%df0/carrier --\n1\n", i)
	}
	root := onDisk(b, archive.String())
	for i := range vfs {
		if err := os.MkdirAll(filepath.Join(root, classDir, fmt.Sprintf("vf_%d", i), "ports/1"), 0o755); err != nil {
			b.Fatal(err)
		}
	}
	p := New(Config{Root: root, Selectors: selectors(b, "mlx5_*"), Require: Require{all: true}, Checks: Checks{Port: true, GID: true, Netdev: true}})
	if r := p.Probe(b.Context(), true); r.Verdict != Healthy || len(r.Ports) != ports {
		b.Fatal(summary(r))
	}
	return p
}
