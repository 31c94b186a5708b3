package kubelet_test

import (
	"bytes"
	"testing"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/kubelet"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

// The story of `make run`, with kubelet's own code on the other side of the registration socket.
func TestTell(t *testing.T) {
	gate, driver := storytest.Build(t)
	var out bytes.Buffer
	err := story.Tell(t.Context(), story.Config{
		Gate: gate, Driver: driver, Out: &out, TempDir: storytest.TempDir(t),
		Plugins: kubelet.PluginManager{}, PluginsName: "its own plugin manager, v1.34.3",
	})
	t.Logf("%s", out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
}
