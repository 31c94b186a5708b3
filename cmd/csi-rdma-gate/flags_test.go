package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// node has the directories that the flags name.
type node struct{ dir, kubelet, registry, socket string }

func newNode(t *testing.T) node {
	t.Helper()
	dir, err := os.MkdirTemp("", "flags")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := node{dir: dir, kubelet: filepath.Join(dir, "kubelet")}
	n.registry = filepath.Join(n.kubelet, "plugins_registry")
	n.socket = filepath.Join(n.kubelet, "plugins", "rdma.example.com", "csi.sock")
	for _, d := range []string{n.registry, filepath.Dir(n.socket)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// parse reads the flags after the three that every gate needs.
func (n node) parse(args ...string) (*config, *options, error) {
	fs, o := newFlags()
	args = append([]string{"--csi-address=/csi/csi.sock", "--kubelet-registration-path=" + n.socket, "--plugin-registration-path=" + n.registry}, args...)
	if err := fs.Parse(args); err != nil {
		return nil, nil, explain(err)
	}
	c, err := o.config()
	return c, o, err
}

// Each error is one line that names the flag and says what to write.
func TestBadFlags(t *testing.T) {
	n := newNode(t)
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"--no-such-flag"}, []string{"--no-such-flag", "--help"}},
		{[]string{"--csi-address=csi.sock"}, []string{"--csi-address", "/csi/csi.sock"}},
		{[]string{"--kubelet-registration-path="}, []string{"--kubelet-registration-path is missing", "/var/lib/kubelet/plugins/"}},
		{[]string{"--kubelet-registration-path=csi.sock"}, []string{"--kubelet-registration-path", "absolute"}},
		{[]string{"--kubelet-registration-path=/odd/csi.sock"}, []string{"--kubelet-registration-path", "add --kubelet-dir"}},
		{[]string{"--kubelet-dir=" + n.dir + "/none"}, []string{"--kubelet-dir", "no such file or directory", "mount it"}},
		{[]string{"--plugin-registration-path=" + n.dir + "/none"}, []string{"--plugin-registration-path", "mount it"}},
		{[]string{"--gate-address=gate.sock"}, []string{"--gate-address", "absolute path"}},
		{[]string{"--gate-address=/" + strings.Repeat("x", 200)}, []string{"--gate-address", "107 bytes", "shorter"}},
		{[]string{"--gate-address=/csi/csi.sock"}, []string{"--gate-address", "--csi-address", "emptyDir"}},
		{[]string{"--gate=off"}, []string{"--gate=", "enforce or observe"}},
		{[]string{"--mode=x"}, nil}, // command checks it
		{[]string{"--gate-volumes=rdma"}, []string{"--gate-volumes", "proto=rdma"}},
		{[]string{"--gate-volumes==x"}, []string{"--gate-volumes", "key=value"}},
		{[]string{"--hold=-1s"}, []string{"--hold", "0s or more"}},
		{[]string{"--hold=5"}, []string{"--hold", "1s or 2m"}},
		{[]string{"--driver-call-timeout=-1s"}, []string{"--driver-call-timeout", "0s or more"}},
		{[]string{"--timeout=0s"}, []string{"--timeout", "above 0s"}},
		{[]string{"--shutdown-timeout=x"}, []string{"--shutdown-timeout", "1s or 2m"}},
		{[]string{"--host-root=" + n.dir + "/none"}, []string{"--host-root", "mount it"}},
		{[]string{"--rdma-device=mlx5_[0"}, []string{"--rdma-device", "mlx5_[0", "write"}},
		{[]string{"--rdma-device="}, []string{"--rdma-device"}},
		{[]string{"--rdma-device=link-layer:wifi"}, []string{"--rdma-device", "infiniband"}},
		{[]string{"--rdma-require=some"}, []string{"--rdma-require", "any", "all"}},
		{[]string{"--rdma-require=0"}, []string{"--rdma-require", "any", "all"}},
		{[]string{"--rdma-require=all"}, []string{"--rdma-require", "name each device"}},
		{[]string{"--rdma-device=mlx5_*", "--rdma-require=all"}, []string{"--rdma-require", "name each device"}},
		{[]string{"--rdma-absent=maybe"}, []string{"--rdma-absent", "closed or open"}},
		{[]string{"--rdma-checks=port,ping"}, []string{"--rdma-checks", "ping", "verbs-open"}},
		{[]string{"--rdma-checks="}, []string{"--rdma-checks"}},
		{[]string{"--rdma-min-rate-gbps=fast"}, []string{"--rdma-min-rate-gbps", "200"}},
		{[]string{"--rdma-min-rate-gbps=-1"}, []string{"--rdma-min-rate-gbps", "200"}},
		{[]string{"--rdma-min-rate-gbps=NaN"}, []string{"--rdma-min-rate-gbps", "200"}},
		{[]string{"--rdma-module=a/b"}, []string{"--rdma-module", "nvme_rdma"}},
		{[]string{"--rdma-resource="}, []string{"--rdma-resource", "rdma/hca"}},
		{[]string{"--rdma-resource=hca"}, []string{"--rdma-resource", "rdma/hca"}},
		{[]string{"--rdma-resource=rdma/hca,rdma/"}, []string{"--rdma-resource", `"rdma/"`, "rdma/hca"}},
		{[]string{"--rdma-resource=kubernetes.io/hca"}, []string{"--rdma-resource", "rdma/hca"}},
		{[]string{"--rdma-resource=requests.rdma/hca"}, []string{"--rdma-resource", "rdma/hca"}},
		{[]string{"--rdma-resource=RDMA/hca"}, []string{"--rdma-resource", "rdma/hca"}},
		{[]string{"--rdma-probe-interval=0"}, []string{"--rdma-probe-interval", "above 0s"}},
		{[]string{"--rdma-probe-timeout=never"}, []string{"--rdma-probe-timeout", "1s or 2m"}},
		{[]string{"--unknown-hold=-1m"}, []string{"--unknown-hold", "0s or more"}},
		{[]string{"--recover-threshold=0"}, []string{"--recover-threshold", "1 or more"}},
		{[]string{"--deregister-threshold=many"}, []string{"--deregister-threshold", "1 or more"}},
		{[]string{"--deregister-policy=sometimes"}, []string{"--deregister-policy", "drained, always or never"}},
		{[]string{"--deregister-jitter=-1s"}, []string{"--deregister-jitter", "0s or more"}},
		{[]string{"--register-jitter=-1s"}, []string{"--register-jitter", "0s or more"}},
		{[]string{"--health-file-max-age=0s"}, []string{"--health-file-max-age", "above 0s"}},
		{[]string{"--topology=always"}, []string{"--topology=", "auto or merge or off"}},
		{[]string{"--topology-prefix=k8s.io"}, []string{"--topology-prefix", "domain of your own"}},
		{[]string{"--topology-prefix=Not A Domain"}, []string{"--topology-prefix", "storage.example.com"}},
		{[]string{"--topology-segment=rail"}, []string{"--topology-segment", "rail=r1"}},
		{[]string{"--topology-segment=rail=r 1"}, []string{"--topology-segment", "label value"}},
		{[]string{"--topology-segment=topology.kubernetes.io/zone=a"}, []string{"--topology-segment", "reserved"}},
		{[]string{"--topology=off", "--topology-segment=rail=r1"}, []string{"--topology=off", "--topology=merge"}},
		{[]string{"--http-endpoint=9809"}, []string{"--http-endpoint", "localhost:9809"}},
		{[]string{"--http-endpoint=fd00::1:9809"}, []string{"--http-endpoint", "[::1]:9809"}},
		{[]string{"--node-name="}, []string{"--node-name", "spec.nodeName"}},
		{[]string{"--liveness-endpoint=9808"}, []string{"--liveness-endpoint", "localhost:9808"}},
		{[]string{"--liveness-endpoint=:9808", "--http-endpoint=:9808"}, []string{"--liveness-endpoint", "--http-endpoint", "another port"}},
		{[]string{"--node-name=two\nlines"}, []string{"--node-name", "spec.nodeName"}},
		{[]string{"--node-name=" + strings.Repeat("n", 300)}, []string{"--node-name", "spec.nodeName"}},
		{[]string{"--http-endpoint=:1", "--health-port=2"}, []string{"--health-port", "--http-endpoint"}},
		{[]string{"--health-port=70000"}, []string{"--health-port", "65535"}},
		{[]string{"--enable-pprof", "--http-endpoint=:9809"}, []string{"--enable-pprof", "localhost"}},
		{[]string{"--enable-pprof"}, []string{"--enable-pprof", "localhost"}},
	} {
		_, _, err := n.parse(tc.args...)
		if tc.want == nil {
			continue
		}
		if err == nil {
			t.Errorf("%v: no error", tc.args)
			continue
		}
		for _, want := range tc.want {
			if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v: %q lacks %q", tc.args, err, want)
			}
		}
	}
}

func TestDefaultsFollowTheRegistrationPath(t *testing.T) {
	n := newNode(t)
	c, _, err := n.parse()
	if err != nil {
		t.Fatal(err)
	}
	if c.gateAddress != n.socket || c.proxy.KubeletDir != n.kubelet || c.registration.Endpoint != n.socket || c.proxy.DriverAddress != "/csi/csi.sock" {
		t.Errorf("gate %s, kubelet %s, endpoint %s, driver %s", c.gateAddress, c.proxy.KubeletDir, c.registration.Endpoint, c.proxy.DriverAddress)
	}
}

func TestSpellingsThatRegistrarManifestsUse(t *testing.T) {
	n := newNode(t)
	for _, args := range [][]string{
		{"--csi-address=unix:///csi/csi.sock"},
		{"-csi-address", "/csi/csi.sock"},
		{"--v=5", "--logtostderr", "--logging-format=json", "-alsologtostderr=false"},
		{"--connection-timeout=30s", "--automaxprocs", "--timeout=60s", "--http-endpoint=:9809"},
		{"--health-port", "9809"},
		{"--mode=registration"},
	} {
		c, _, err := n.parse(args...)
		if err != nil || c.proxy.DriverAddress != "/csi/csi.sock" {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestRepeatableFlagsAndCommas(t *testing.T) {
	n := newNode(t)
	c, o, err := n.parse("--rdma-device=mlx5_0,mlx5_1", "--rdma-device", "pci:0000:17:00.0", "--gate-volumes=proto=rdma", "--gate-volumes=a=b=c,d",
		"--topology-segment=rail=r1", "--topology-segment=s.example.com/switch=sw")
	if err != nil {
		t.Fatal(err)
	}
	if len(o.rdmaDevices) != 3 || len(c.probe.Selectors) != 3 {
		t.Errorf("devices %q", o.rdmaDevices)
	}
	if v := c.proxy.Gate.Volumes; len(v) != 2 || v[1].Key != "a" || v[1].Value != "b=c,d" {
		t.Errorf("volumes %v", v)
	}
	if s := c.proxy.Topology.Segments; s["rail"] != "r1" || s["s.example.com/switch"] != "sw" {
		t.Errorf("segments %v", s)
	}
}

// The table of flags and their defaults; the README is compared with the same set.
func TestDefaults(t *testing.T) {
	fs, _ := newFlags()
	for name, want := range map[string]string{
		"csi-address": "/run/csi/socket", "plugin-registration-path": "/registration", "timeout": "1s", "health-port": "0",
		"gate": "enforce", "rdma-require": "any", "rdma-absent": "closed", "rdma-checks": "port,gid,netdev,verbs",
		"rdma-probe-interval": "1s", "rdma-probe-timeout": "3s", "unknown-hold": "30s", "recover-threshold": "3",
		"hold": "0s", "driver-call-timeout": "0s", "deregister-policy": "drained", "deregister-threshold": "30",
		"deregister-jitter": "30s", "register-jitter": "10s", "topology": "auto", "host-root": "/", "shutdown-timeout": "25s",
		"health-file-max-age": "1m0s", "mode": "registration",
	} {
		if f := fs.Lookup(name); f == nil || f.DefValue != want {
			t.Errorf("--%s: %+v, want default %q", name, f, want)
		}
	}
}

func TestEveryFlagStandsInTheREADME(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	older := flag.NewFlagSet("", flag.ContinueOnError)
	addKlogFlags(older)
	fs, _ := newFlags()
	fs.VisitAll(func(f *flag.Flag) {
		if older.Lookup(f.Name) == nil && !strings.HasPrefix(f.Name, "log-") && !strings.Contains(string(readme), "`--"+f.Name) {
			t.Errorf("--%s is missing", f.Name)
		}
	})
}

func TestCommandsThatOnlyPrint(t *testing.T) {
	for _, tc := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"--version"}, 0, "csi-rdma-gate unknown\n"},
		{[]string{"--help"}, 0, "-rdma-device"},
		{[]string{"probe", "--help"}, 0, "probe: output format"},
		{[]string{"--mode=kubelet-registration-probe", "--kubelet-registration-path=/x"}, 0, ""},
	} {
		var out bytes.Buffer
		status, err := command(context.Background(), tc.args, &out)
		if status != tc.status || err != nil || !strings.Contains(out.String(), tc.want) {
			t.Errorf("%v: status %d, %v, %q", tc.args, status, err, out.String())
		}
	}
	for args, want := range map[string]int{"stray": 1, "--node-name=$(NODE_NAME)": 1, "--mode=x": 1, "probe -o=yaml": 3, "probe --rdma-require=0": 3, "probe stray": 3} {
		status, err := command(context.Background(), strings.Fields(args), &bytes.Buffer{})
		if status != want || err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: status %d, %v; want %d", args, status, err, want)
		}
	}
}
