package probe

import "testing"

func TestParseUevent(t *testing.T) {
	const path = "/devices/pci0000:00/0000:17:00.0/infiniband/mlx5_0"
	for data, want := range map[string]deviceNotice{
		"add@" + path + "\x00ACTION=add\x00DEVPATH=" + path + "\x00SUBSYSTEM=infiniband\x00NAME=mlx5_0\x00SEQNUM=4711\x00":           {"add", "infiniband", "mlx5_0"},
		"move@" + path + "\x00ACTION=move\x00DEVPATH=" + path + "\x00SUBSYSTEM=infiniband\x00DEVPATH_OLD=/x/ibp23s0\x00SEQNUM=1\x00": {"move", "infiniband", "mlx5_0"},
		"remove@/x/uverbs0\x00ACTION=remove\x00DEVPATH=/x/uverbs0\x00SUBSYSTEM=infiniband_verbs\x00DEVNAME=infiniband/uverbs0":       {"remove", "infiniband_verbs", "uverbs0"},
		"add@/x\x00ACTION=add\x00DEVPATH=/x=y\x00SUBSYSTEM=net\x00":                                                                  {"add", "net", "x=y"},
	} {
		if n, ok := parseUevent([]byte(data)); !ok || n != want {
			t.Errorf("%q: %+v %v", data, n, ok)
		}
	}
	for _, data := range []string{
		"", "\x00", "add", "add@", "@/x\x00ACTION=add\x00SUBSYSTEM=net", "add@/x\x00", "add@/x\x00ACTION=add\x00",
		"add@/x\x00SUBSYSTEM=infiniband", "libudev\x00\xfe\xed\xca\xfeACTION=add\x00SUBSYSTEM=infiniband\x00",
	} {
		if n, ok := parseUevent([]byte(data)); ok {
			t.Errorf("%q: %+v", data, n)
		}
	}
}

func FuzzParseUevent(f *testing.F) {
	f.Add([]byte("add@/x/mlx5_0\x00ACTION=add\x00DEVPATH=/x/mlx5_0\x00SUBSYSTEM=infiniband\x00"))
	f.Add([]byte("libudev\x00ACTION=add\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, ok := parseUevent(data); ok && (n.action == "" || n.subsystem == "") {
			t.Errorf("%+v", n)
		}
	})
}
