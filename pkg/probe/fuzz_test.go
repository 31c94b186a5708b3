package probe

import (
	"strings"
	"testing"
	"unicode"
)

// FuzzProbe puts anything into the attributes and wants a result whose texts are fit for a message.
func FuzzProbe(f *testing.F) {
	f.Add("4: ACTIVE", "5: LinkUp", "Ethernet", "fe80:0000:0000:0000:0202:c9ff:feaa:b000", "RoCE v2", "ens1f0", "1", "231:192", "mlx5_0")
	f.Add("2: INIT", "5: LinkUp", "InfiniBand", "fe80:0000:0000:0000:0000:0000:0000:0000", "!EINVAL", "../../x", "!EINVAL", "1", "mlx5_1")
	f.Add("\x1b[31m", "5:\x00", "Unknown", "::", "\n\n", "a\nb", "!EIO", "-1:-1", "")
	f.Fuzz(func(t *testing.T, state, phys, layer, gid, kind, ndev, carrier, dev, ibdev string) {
		tr := newTree(t, roce)
		const port = "sys/class/infiniband/mlx5_0/ports/1/"
		for name, content := range map[string]string{
			port + "state": state, port + "phys_state": phys, port + "link_layer": layer, port + "gids/0": gid,
			port + "gid_attrs/types/0": kind, port + "gid_attrs/ndevs/0": ndev, "sys/class/net/ens1f0/carrier": carrier,
			"sys/class/infiniband_verbs/uverbs0/dev": dev, "sys/class/infiniband_verbs/uverbs0/ibdev": ibdev,
		} {
			if !strings.HasPrefix(content, "!") && !strings.HasPrefix(content, "-> ") || errnoNamed(content) != 0 {
				tr.set(name, content)
			}
		}
		p := newProber(Config{Selectors: selectors(t, "mlx5_0"), MinRateGbps: 1}, tr)
		r := p.Probe(t.Context(), true)
		if again := p.Probe(t.Context(), false); summary(again) != summary(r) {
			t.Errorf("%s, then %s", summary(r), summary(again))
		}
		for _, trouble := range r.Troubles() {
			if text := trouble.String(); len(text) > 800 || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("%q", text)
			}
		}
		if _, err := r.MarshalJSON(); err != nil {
			t.Error(err)
		}
	})
}
