package proxy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/status"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// Whatever names and values are, the message is one short line.
func FuzzRefusal(f *testing.F) {
	f.Add("pvc-1", "mlx5_0/1", "state 1: DOWN, phys_state 2: Polling", "", 1)
	f.Add(strings.Repeat("\xff\n", 400), "é", strings.Repeat("ß", 999), "maintenance\nof the switch", 64)
	f.Fuzz(func(t *testing.T, volume, subject, detail, why string, ports int) {
		h := closed()
		h.Cause = nil
		for range min(max(ports, 0), 200) {
			h.Cause = append(h.Cause, probe.Trouble{Subject: OneLine(subject), Reason: probe.PhysLinkDown, Detail: OneLine(detail)})
		}
		if why != "" {
			h.Override = &probe.Override{Why: why}
		}
		g := &gate{GateConfig: GateConfig{NodeName: "worker-7"}, volumes: newVolumes(), driverName: func() string { return "" },
			mounted: func([]string) (bool, error) { return false, nil }}
		r := &request{method: csi.Node_NodePublishVolume_FullMethodName, volume: volume, path: "/t"}
		m := status.Convert(g.decide(r, h)).Message()
		if len(m) >= 1000 || strings.ContainsFunc(m, unicode.IsControl) || !utf8.ValidString(m) && utf8.ValidString(subject+detail+why) {
			t.Errorf("%d bytes: %q", len(m), m)
		}
	})
}

// A vol_data.json either tells driver and volume or counts as unreadable; it is never overlooked.
func FuzzVolData(f *testing.F) {
	f.Add([]byte(`{"driverName":"a","volumeHandle":"b"}`))
	f.Add([]byte(`{"driverName":"a"`))
	f.Add([]byte(`[1,2]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(t.TempDir(), "vol_data.json")
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		var a attempt
		if found := a.read(file); !found || !a.unreadable && (a.driver == "" || a.volume == "") {
			t.Errorf("%q: found %v, %+v", data, found, a)
		}
	})
}

// What cannot be decoded is malformed, never a panic and never complete.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x0a\x01v"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, decode := range []func(frame) *request{decodeStage, decodePublish} {
			if r := decode(data); r.malformed == "" && (r.volume == "" || r.path == "") {
				t.Errorf("%q: %+v", data, r)
			}
		}
		decodeUnstage(data)
		decodeUnpublish(data)
	})
}
