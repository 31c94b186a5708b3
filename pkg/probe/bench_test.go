package probe

import (
	"fmt"
	"strings"
	"testing"
)

// benchProber looks at eight devices on disk, as a node with eight rails has them.
func benchProber(b *testing.B) *Prober {
	var archive strings.Builder
	for i := range 8 {
		one, _, _ := strings.Cut(roce, "-- sys/class/infiniband/mlx5_1/")
		one = strings.NewReplacer("mlx5_0", fmt.Sprintf("mlx5_%d", i), "ens1f0", fmt.Sprintf("ens%df0", i)).Replace(one)
		archive.WriteString(one)
		fmt.Fprintf(&archive, "-- sys/class/net/ens%df0/carrier --\n1\n", i)
	}
	p := New(Config{Root: onDisk(b, archive.String()), Checks: Checks{Port: true, GID: true, Netdev: true}})
	if r := p.Probe(b.Context(), true); r.Verdict != Healthy || len(r.Ports) != 8 {
		b.Fatal(summary(r))
	}
	return p
}

func BenchmarkLightProbe(b *testing.B) {
	p := benchProber(b)
	for b.Loop() {
		p.Probe(b.Context(), false)
	}
}

func BenchmarkFullProbe(b *testing.B) {
	p := benchProber(b)
	for b.Loop() {
		p.Probe(b.Context(), true)
	}
}
