package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/proxy"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/registration"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/socket"
)

// options are the flags' values, raw where they need a second look.
type options struct {
	version bool
	mode    string
	logging *logsapi.LoggingConfiguration
	set     map[string]string // the flags that were given, for /status

	csiAddress, kubeletRegistrationPath, pluginRegistrationPath string
	gateAddress, kubeletDir, hostRoot, nodeName                 string
	httpEndpoint, livenessEndpoint                              string
	healthPort                                                  int
	pprof, storageHealth                                        bool

	gate, overrideFile                                string
	gateVolumes                                       []string
	timeout, driverCallTimeout, hold, shutdownTimeout time.Duration

	rdmaDevices, rdmaModules, rdmaResources  []string
	rdmaRequire, rdmaAbsent, rdmaChecks      string
	rdmaMinRate                              float64
	healthFile                               string
	healthFileMaxAge                         time.Duration
	probeInterval, probeTimeout, unknownHold time.Duration
	recoverThreshold                         int

	deregisterPolicy                 string
	deregisterThreshold              int
	deregisterJitter, registerJitter time.Duration

	topology, topologyPrefix string
	topologySegments         []string
}

// newFlags returns the flags of both the gate and its probe command.
func newFlags() (*flag.FlagSet, *options) {
	o := &options{logging: logsapi.NewLoggingConfiguration()}
	fs := flag.NewFlagSet("csi-rdma-gate", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // main prints the error, on one line

	// Those of csi-node-driver-registrar.
	fs.StringVar(&o.csiAddress, "csi-address", "/run/csi/socket", "`path` of the CSI driver's socket, as seen here")
	fs.StringVar(&o.kubeletRegistrationPath, "kubelet-registration-path", "", "`path` of the CSI socket, as kubelet sees it; required")
	fs.StringVar(&o.pluginRegistrationPath, "plugin-registration-path", "/registration", "kubelet's plugins_registry `directory`, as seen here")
	duration(fs, &o.timeout, "timeout", time.Second, positive, "how long the driver may take for the calls at the start, and may stay silent before a remembered reply stands in")
	fs.StringVar(&o.httpEndpoint, "http-endpoint", "", "TCP `address` for /healthz, /metrics and /status, such as localhost:9809; empty means none")
	number(fs, &o.healthPort, "health-port", 0, 0, "deprecated: TCP port for /healthz; use --http-endpoint")
	fs.BoolVar(&o.pprof, "enable-pprof", false, "serve pprof on --http-endpoint, which then has to be a loopback address")
	fs.StringVar(&o.mode, "mode", "registration", "registration, or kubelet-registration-probe, which exits with 0 at once")
	fs.Duration("connection-timeout", 0, "deprecated and ignored")
	fs.Bool("automaxprocs", false, "ignored: the Go runtime keeps within the container's CPU limit by itself")
	fs.BoolVar(&o.version, "version", false, "print the version and exit")

	// The gate.
	fs.StringVar(&o.gateAddress, "gate-address", "", "`path` of the socket that the gate serves, as seen here (default the value of --kubelet-registration-path)")
	fs.StringVar(&o.gate, "gate", "enforce", "enforce, or observe: forward everything, log what would have been refused, never deregister")
	fs.StringVar(&o.overrideFile, "override-file", "", "`file` whose first line, \"open WHY\" or \"closed WHY\", wins over the probe")
	list(fs, &o.gateVolumes, "gate-volumes", "`key=value` in volume context, publish context or mount flags: gate only volumes that match one of them; repeatable (default all volumes)")
	duration(fs, &o.hold, "hold", 0, notNegative, "how long a call that is about to be refused waits for the gate to open")
	duration(fs, &o.driverCallTimeout, "driver-call-timeout", 0, notNegative, "limit for each call to the driver; 0s means the caller's deadline")
	fs.StringVar(&o.kubeletDir, "kubelet-dir", "", "kubelet's root `directory`, mounted at that same path (default what stands before /plugins/ in --kubelet-registration-path)")
	fs.StringVar(&o.nodeName, "node-name", hostName(), "`name` of the node in messages")
	duration(fs, &o.shutdownTimeout, "shutdown-timeout", 25*time.Second, notNegative, "how long calls that are with the driver may take to end after SIGTERM")

	fs.BoolVar(&o.storageHealth, "storage-health", false, "advertise GET_STORAGE_HEALTH (CSI 1.13, alpha) and add the gate's entries to the driver's NodeGetStorageHealth")
	fs.StringVar(&o.livenessEndpoint, "liveness-endpoint", "", "TCP `address` for livenessprobe's /healthz, which asks the driver's Probe; empty means none")

	// The hardware.
	fs.StringVar(&o.hostRoot, "host-root", "/", "`directory` where the host's /sys and /dev are mounted")
	commaList(fs, &o.rdmaDevices, "rdma-device", "what carries storage: device `globs`, DEVICE/PORT, pci:ADDRESS, netdev:GLOB, link-layer:LAYER; comma-separated, repeatable (default every device but virtual functions)")
	fs.StringVar(&o.rdmaRequire, "rdma-require", "any", "how many of the selected ports must be healthy: any, all or a number")
	fs.StringVar(&o.rdmaAbsent, "rdma-absent", "closed", "the gate on a node without RDMA devices: closed or open")
	fs.StringVar(&o.rdmaChecks, "rdma-checks", "port,gid,netdev,verbs", "`layers` that must be in order: port, gid, netdev, verbs, verbs-open")
	fs.Func("rdma-min-rate-gbps", "least `rate` of a port in Gb/s (default any)", func(s string) error {
		rate, err := strconv.ParseFloat(s, 64)
		if err != nil || !(rate >= 0) || math.IsInf(rate, 0) {
			return errors.New("write a number of Gb/s such as 200")
		}
		o.rdmaMinRate = rate
		return nil
	})
	commaList(fs, &o.rdmaModules, "rdma-module", "kernel `module` that must be loaded, such as nvme_rdma; comma-separated, repeatable")
	commaList(fs, &o.rdmaResources, "rdma-resource", "extended `resource` that kubelet must advertise, such as rdma/hca; comma-separated, repeatable")
	fs.StringVar(&o.healthFile, "health-file", "", "`file` written by a check of your own: first line OK, or ERROR and a text")
	duration(fs, &o.healthFileMaxAge, "health-file-max-age", time.Minute, positive, "age from which the health file says nothing any more")
	duration(fs, &o.probeInterval, "rdma-probe-interval", time.Second, positive, "time between two probes")
	duration(fs, &o.probeTimeout, "rdma-probe-timeout", 3*time.Second, positive, "time after which a probe is stuck")
	duration(fs, &o.unknownHold, "unknown-hold", 30*time.Second, notNegative, "how long an open gate stays open while the state cannot be read")
	number(fs, &o.recoverThreshold, "recover-threshold", 3, 1, "healthy probes in a row that open the gate again")

	// The registration.
	fs.StringVar(&o.deregisterPolicy, "deregister-policy", "drained", "when trouble that lasts deregisters the driver: drained (once no volume is left), always or never")
	number(fs, &o.deregisterThreshold, "deregister-threshold", 30, 1, "unhealthy probes in a row after which trouble lasts")
	duration(fs, &o.deregisterJitter, "deregister-jitter", 30*time.Second, notNegative, "deregistering waits a random part of this")
	duration(fs, &o.registerJitter, "register-jitter", 10*time.Second, notNegative, "registering again waits a random part of this")

	// The topology.
	fs.StringVar(&o.topology, "topology", "auto", "add segments to NodeGetInfo: auto (if the driver reports none), merge (to the driver's) or off")
	fs.StringVar(&o.topologyPrefix, "topology-prefix", "", "`prefix` of the added keys (default the driver's own, else the driver's name)")
	list(fs, &o.topologySegments, "topology-segment", "`key=value` to add; a key without a prefix gets --topology-prefix; repeatable")

	logsapi.AddGoFlags(o.logging, fs)
	addKlogFlags(fs)
	return fs, o
}

// addKlogFlags accepts klog's older flags too, as csi-node-driver-registrar does.
func addKlogFlags(fs *flag.FlagSet) {
	old := flag.NewFlagSet("", flag.ContinueOnError)
	klog.InitFlags(old)
	old.VisitAll(func(f *flag.Flag) {
		if fs.Lookup(f.Name) == nil {
			fs.Var(f.Value, f.Name, f.Usage)
		}
	})
}

func hostName() string {
	name, _ := os.Hostname()
	return name
}

// config is what the flags come to.
type config struct {
	probe        probe.Config
	monitor      probe.MonitorConfig
	proxy        proxy.Config
	registration registration.Config
	gateAddress  string
	httpAddress  string
}

// probeConfig checks the flags that the probe command has in common with the gate.
func (o *options) probeConfig() (probe.Config, error) {
	var c probe.Config
	selectors, err := probe.ParseSelectors(o.rdmaDevices)
	if err != nil {
		return c, fmt.Errorf("--rdma-device=%w", err)
	}
	require, err := probe.ParseRequire(o.rdmaRequire)
	if err != nil {
		return c, fmt.Errorf("--rdma-require=%w", err)
	}
	checks, err := probe.ParseChecks(o.rdmaChecks)
	if err != nil {
		return c, fmt.Errorf("--rdma-checks=%w", err)
	}
	if err := oneOf("rdma-absent", o.rdmaAbsent, "closed", "open"); err != nil {
		return c, err
	}
	for _, module := range o.rdmaModules {
		if module == "" || strings.ContainsAny(module, "/ ") {
			return c, fmt.Errorf("--rdma-module=%q is no module name; write one such as nvme_rdma", module)
		}
	}
	for _, name := range o.rdmaResources {
		if !isExtendedResource(name) {
			return c, fmt.Errorf("--rdma-resource=%q is no extended resource; write DOMAIN/NAME as pods request it, such as rdma/hca", name)
		}
	}
	if err := isDir("host-root", o.hostRoot); err != nil {
		return c, err
	}
	return probe.Config{
		Root:       o.hostRoot,
		Selectors:  selectors,
		Require:    require,
		Checks:     checks,
		AbsentOpen: o.rdmaAbsent == "open",
		Timeout:    o.probeTimeout,

		MinRateGbps:      o.rdmaMinRate,
		Modules:          o.rdmaModules,
		HealthFile:       o.healthFile,
		HealthFileMaxAge: o.healthFileMaxAge,

		Resources:          o.rdmaResources,
		PodResourcesSocket: filepath.Join(o.kubeletRoot(), "pod-resources", "kubelet.sock"),
	}, nil
}

// isExtendedResource goes by the rules of the API server.
func isExtendedResource(name string) bool {
	domain, _, ok := strings.Cut(name, "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") &&
		!strings.HasPrefix(name, "requests.") && len(validation.IsQualifiedName("requests."+name)) == 0
}

// kubeletRoot is empty if the flags do not tell. Without any, the probe command looks in the usual
// place.
func (o *options) kubeletRoot() string {
	if o.kubeletDir != "" {
		return o.kubeletDir
	}
	endpoint := socketPath(o.kubeletRegistrationPath)
	if endpoint == "" {
		return "/var/lib/kubelet"
	}
	before, _, _ := strings.Cut(endpoint, "/plugins/")
	if before == endpoint {
		return ""
	}
	return before
}

// config checks every flag. The error is one line that names the flag and what to write instead.
func (o *options) config() (*config, error) {
	c := &config{}
	var err error
	if c.probe, err = o.probeConfig(); err != nil {
		return nil, err
	}
	if err := probe.CheckRequire(c.probe.Selectors, c.probe.Require); err != nil {
		return nil, fmt.Errorf("--rdma-require: %w", err)
	}
	c.monitor = probe.MonitorConfig{
		Interval:         o.probeInterval,
		UnknownHold:      o.unknownHold,
		RecoverThreshold: o.recoverThreshold,
		OverrideFile:     o.overrideFile,
		NodeName:         o.nodeName,
		NoSelection:      len(o.rdmaDevices) == 0,
	}
	for _, step := range []func(*config) error{o.sockets, o.http, o.gatePolicy, o.registrationPolicy, o.topologyPolicy} {
		if err := step(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (o *options) sockets(c *config) error {
	driver := socketPath(o.csiAddress)
	if !filepath.IsAbs(driver) {
		return fmt.Errorf("--csi-address=%q is no absolute path; write the driver's socket, such as /csi/csi.sock", o.csiAddress)
	}
	endpoint := socketPath(o.kubeletRegistrationPath)
	if endpoint == "" {
		return errors.New("--kubelet-registration-path is missing; write the CSI socket's path as kubelet sees it, such as /var/lib/kubelet/plugins/DRIVER/csi.sock")
	}
	if !filepath.IsAbs(endpoint) {
		return fmt.Errorf("--kubelet-registration-path=%q is no absolute path; write the CSI socket as kubelet sees it", o.kubeletRegistrationPath)
	}
	gate := socketPath(o.gateAddress)
	if gate == "" {
		gate = endpoint
	}
	if err := socket.CheckPath(gate); err != nil {
		return fmt.Errorf("--gate-address=%w; write a shorter or absolute path", err)
	}
	if filepath.Clean(gate) == filepath.Clean(driver) || sameFile(gate, driver) {
		return fmt.Errorf("--gate-address and --csi-address are both %s; move the driver's socket to a directory that only the pod sees, such as an emptyDir", driver)
	}
	if err := isDir("plugin-registration-path", o.pluginRegistrationPath); err != nil {
		return err
	}
	kubeletDir := o.kubeletRoot()
	if kubeletDir == "" {
		return fmt.Errorf("--kubelet-registration-path=%q has no /plugins/ in it, so kubelet's root is not known; add --kubelet-dir", o.kubeletRegistrationPath)
	}
	if err := isDir("kubelet-dir", kubeletDir); err != nil {
		return err
	}
	if err := proxy.CheckPropagation(kubeletDir); err != nil {
		return fmt.Errorf("--kubelet-dir: %w", err)
	}
	c.gateAddress = gate
	c.proxy.DriverAddress, c.proxy.KubeletDir = driver, kubeletDir
	c.proxy.Timeout, c.proxy.CallTimeout, c.proxy.StorageHealth = o.timeout, o.driverCallTimeout, o.storageHealth
	c.registration.Dir, c.registration.Endpoint = o.pluginRegistrationPath, endpoint
	return nil
}

func (o *options) http(c *config) error {
	c.httpAddress = o.httpEndpoint
	if o.healthPort > 0 {
		if o.httpEndpoint != "" {
			return errors.New("--health-port and --http-endpoint are both given; leave --health-port out")
		}
		if o.healthPort > 65535 {
			return fmt.Errorf("--health-port=%d is no TCP port; write a number up to 65535", o.healthPort)
		}
		c.httpAddress = ":" + strconv.Itoa(o.healthPort)
	}
	host, _, err := net.SplitHostPort(c.httpAddress)
	if c.httpAddress != "" && err != nil {
		return fmt.Errorf("--http-endpoint=%q is no address; write HOST:PORT, such as localhost:9809, an IPv6 address as [::1]:9809", o.httpEndpoint)
	}
	if _, _, err := net.SplitHostPort(o.livenessEndpoint); o.livenessEndpoint != "" && err != nil {
		return fmt.Errorf("--liveness-endpoint=%q is no address; write HOST:PORT, such as localhost:9808, an IPv6 address as [::1]:9808", o.livenessEndpoint)
	}
	if o.livenessEndpoint != "" && o.livenessEndpoint == c.httpAddress {
		return errors.New("--liveness-endpoint and --http-endpoint are the same address; write another port for one of them")
	}
	if ip := net.ParseIP(host); o.pprof && host != "localhost" && !ip.IsLoopback() {
		return errors.New("--enable-pprof needs a loopback address; write --http-endpoint=localhost:PORT")
	}
	return nil
}

func (o *options) gatePolicy(c *config) error {
	if err := oneOf("gate", o.gate, "enforce", "observe"); err != nil {
		return err
	}
	// Host names that Kubernetes would not have are let through: the name only stands in messages.
	if o.nodeName == "" || len(o.nodeName) > 253 || strings.ContainsFunc(o.nodeName, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		return fmt.Errorf("--node-name=%q is no node's name; write spec.nodeName", o.nodeName)
	}
	c.proxy.Gate = proxy.GateConfig{NodeName: o.nodeName, Observe: o.gate == "observe", Hold: o.hold}
	for _, text := range o.gateVolumes {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return fmt.Errorf("--gate-volumes=%q is no key=value; write one, such as proto=rdma", text)
		}
		c.proxy.Gate.Volumes = append(c.proxy.Gate.Volumes, proxy.VolumeSelector{Key: key, Value: value})
	}
	return nil
}

func (o *options) registrationPolicy(c *config) error {
	policy, err := registration.ParsePolicy(o.deregisterPolicy)
	if err != nil {
		return fmt.Errorf("--deregister-policy=%w", err)
	}
	r := &c.registration
	r.NodeName, r.Observe, r.Policy, r.Threshold = o.nodeName, o.gate == "observe", policy, o.deregisterThreshold
	r.Timeout, r.VerdictTimeout = o.timeout, o.probeTimeout
	r.DeregisterJitter, r.RegisterJitter = o.deregisterJitter, o.registerJitter
	return nil
}

func (o *options) topologyPolicy(c *config) error {
	if err := oneOf("topology", o.topology, "auto", "merge", "off"); err != nil {
		return err
	}
	if p := o.topologyPrefix; p != "" {
		if proxy.Reserved(p) {
			return fmt.Errorf("--topology-prefix=%q is reserved for Kubernetes; write a domain of your own", p)
		}
		if errs := validation.IsDNS1123Subdomain(p); len(errs) > 0 {
			return fmt.Errorf("--topology-prefix=%q is no domain; write one such as storage.example.com", p)
		}
	}
	segments := map[string]string{}
	for _, text := range o.topologySegments {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return fmt.Errorf("--topology-segment=%q is no key=value; write one, such as rail=r1", text)
		}
		if err := proxy.CheckSegment(key, value); err != nil {
			return fmt.Errorf("--topology-segment=%q: %w", text, err)
		}
		segments[key] = value
	}
	if o.topology == "off" && len(segments)+len(o.topologyPrefix) > 0 {
		return fmt.Errorf("--topology=off adds nothing; leave out --topology-segment and --topology-prefix, or write --topology=merge")
	}
	c.proxy.Topology = proxy.TopologyConfig{Mode: proxy.TopologyMode(o.topology), Prefix: o.topologyPrefix, Segments: maps.Clone(segments)}
	return nil
}

// socketPath takes the spellings that csi-lib-utils takes.
func socketPath(address string) string {
	for _, scheme := range []string{"unix://", "unix:"} {
		if path, ok := strings.CutPrefix(address, scheme); ok {
			return path
		}
	}
	return address
}

// sameFile sees through two mounts of one directory.
func sameFile(a, b string) bool {
	dirA, errA := os.Stat(filepath.Dir(a))
	dirB, errB := os.Stat(filepath.Dir(b))
	return errA == nil && errB == nil && os.SameFile(dirA, dirB) && filepath.Base(a) == filepath.Base(b)
}

func isDir(name, path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.IsDir() {
		err = errors.New("no directory")
	}
	if err != nil {
		var pathErr *os.PathError
		if errors.As(err, &pathErr) {
			err = pathErr.Err
		}
		return fmt.Errorf("--%s=%q: %w; mount it into the container or write the directory where it is", name, path, err)
	}
	return nil
}

func oneOf(name, value string, allowed ...string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return fmt.Errorf("--%s=%q is not known; write %s", name, value, strings.Join(allowed, " or "))
}
