package kubelet_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// quiet is longer than the reconciler's interval: what has not happened by then does not happen.
const quiet = 1500 * time.Millisecond

func TestRegistersAndDeregisters(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	topology := map[string]string{"nfs.example.com/rdma": "true"}
	r := newRegistrar(n.driver(t, topology))
	n.run(t)

	sock := filepath.Join(n.RegistryDir(), "nfs-reg.sock")
	r.serve(t, sock)
	d := n.await(t, true)
	if d.NodeID != "n" || d.Topology["nfs.example.com/rdma"] != "true" {
		t.Errorf("registered as %+v", d)
	}
	if s := r.status(t); !s.GetPluginRegistered() {
		t.Errorf("status %v", s)
	}
	if err := os.Remove(sock); err != nil {
		t.Fatal(err)
	}
	n.await(t, false)
	if got := n.Drivers.Labels()["nfs.example.com/rdma"]; got != "true" {
		t.Errorf("the label went with the driver: %q", got)
	}
}

func TestRegistersSocketThatIsThereAtStart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	newRegistrar(n.driver(t, nil)).serve(t, filepath.Join(n.RegistryDir(), "nfs-reg.sock"))
	n.run(t)
	n.await(t, true)
}

func TestRenameIntoPlaceRegistersAndRenameAwayDoesNotDeregister(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.run(t)
	hidden := filepath.Join(n.RegistryDir(), ".nfs.sock")
	sock := filepath.Join(n.RegistryDir(), "nfs-reg.sock")
	newRegistrar(n.driver(t, nil)).serve(t, hidden)
	time.Sleep(quiet)
	if _, ok := n.Drivers.Get(driverName); ok {
		t.Fatal("registered by a socket whose name starts with a dot")
	}
	if err := os.Rename(hidden, sock); err != nil {
		t.Fatal(err)
	}
	n.await(t, true)
	if err := os.Rename(sock, hidden); err != nil {
		t.Fatal(err)
	}
	time.Sleep(quiet)
	if _, ok := n.Drivers.Get(driverName); !ok {
		t.Fatal("kubelet does not notice a rename, but the driver was deregistered")
	}
}

func TestSocketMadeAgainIsRegisteredAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	r := newRegistrar(n.driver(t, nil))
	n.run(t)
	sock := filepath.Join(n.RegistryDir(), "nfs-reg.sock")
	r.serve(t, sock)
	r.status(t)
	if err := os.Remove(sock); err != nil {
		t.Fatal(err)
	}
	r.serve(t, sock)
	if s := r.status(t); !s.GetPluginRegistered() {
		t.Errorf("status %v", s)
	}
}

func TestTellsPluginWhyItIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*testing.T, *node, *registrar)
		want    string
	}{
		"type": {
			func(_ *testing.T, _ *node, r *registrar) { r.kind = "DevicePlugin" },
			"no handler registered for plugin type: DevicePlugin",
		},
		"name taken": {
			func(t *testing.T, n *node, r *registrar) {
				if err := n.Drivers.RegisterPlugin(driverName, r.endpoint, []string{"1.0.0"}, nil); err != nil {
					t.Error(err)
				}
			},
			"Another driver with the same name is already registered",
		},
		"topology collision": {
			func(t *testing.T, n *node, r *registrar) {
				if err := n.Drivers.RegisterPlugin(driverName, r.endpoint, []string{"1.0.0"}, nil); err != nil {
					t.Error(err)
				}
				n.Drivers.DeRegisterPlugin(driverName, "")
				n.driver(t, map[string]string{"z": "2"})
			},
			`detected topology value collision: driver reported "z":"2" but existing label is "z":"1"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			r := newRegistrar(n.driver(t, map[string]string{"z": "1"}))
			c.prepare(t, n, r)
			r.serve(t, filepath.Join(n.RegistryDir(), "nfs-reg.sock"))
			n.run(t)
			if s := r.status(t); s.GetPluginRegistered() || !strings.Contains(s.GetError(), c.want) {
				t.Errorf("status %v, want %s", s, c.want)
			}
		})
	}
}
