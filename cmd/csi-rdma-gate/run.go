package main

import (
	"context"
	"net"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/proxy"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/registration"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/socket"
	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/status"
)

// tendInterval keeps within the 5 s after which a socket that somebody has removed is back.
const tendInterval = 2 * time.Second

// run wires probe, proxy and registration, serves until ctx ends and then shuts down in order.
func run(ctx context.Context, c *config, o *options) error {
	klog.InfoS("Starting", "node", o.nodeName, "version", version, "commit", commit, "gate", o.gate, "gateAddress", c.gateAddress, "csiAddress", c.proxy.DriverAddress,
		"kubeletDir", c.proxy.KubeletDir, "rdmaDevice", o.rdmaDevices, "rdmaRequire", o.rdmaRequire, "rdmaChecks", o.rdmaChecks)

	// Everything but the registration lives on while calls end.
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()

	prober := probe.New(c.probe)
	go prober.Watch(serving)
	monitor := probe.NewMonitor(prober, c.monitor)
	go monitor.Run(serving)
	go probe.NewEvents(monitor).Run(serving)

	operations := &status.Operations{}
	c.proxy.Record = operations.Record
	c.proxy.Gate.Health, c.proxy.Topology.Health = monitor.Health, monitor.Health
	server, err := proxy.New(c.proxy)
	if err != nil {
		return err
	}
	probed := make(chan struct{})
	gate := socket.NewKeeper(c.gateAddress, func(l net.Listener) error {
		// Calls wait at our socket from here on, so none can slip through another gate while we
		// list what that one has begun: the one before us, or one after us that has gone again.
		server.Inherit()
		<-probed
		return server.Serve(l)
	})
	if err := gate.Put(); err != nil {
		klog.ErrorS(err, "Gate socket cannot be put in place; trying again")
	}
	awaitFirstProbe(ctx, monitor, c.probe.Timeout)
	close(probed)
	tending, stopTending := context.WithCancel(serving)
	defer stopTending()
	go tend(tending, gate)

	c.registration.Health = monitor.Health
	c.registration.Driver, c.registration.Volumes, c.registration.Topology = server, server, server
	registrar := registration.New(c.registration)
	sources := status.Sources{Version: version, Observe: c.proxy.Gate.Observe, Serving: func() bool { return gate.State() == socket.Ours }, Health: monitor.Health, Calls: server.Stats, Registration: registrar.Stats}
	page := status.Page{Sources: sources, Node: o.nodeName, Topology: server.Topology, Flags: o.set}
	go serveHTTP(serving, c.httpAddress, newDiagnostics(status.Handler(sources, operations), page, o.pprof, gate.Err, registrar.Err))
	go serveHTTP(serving, o.livenessEndpoint, newLiveness(o.timeout, server.Probe))

	deregistered := make(chan struct{})
	go func() {
		registrar.Run(ctx)
		close(deregistered)
	}()
	<-ctx.Done()
	klog.InfoS("Shutting down", "node", o.nodeName, "timeout", o.shutdownTimeout.String())
	shutdown, cancel := context.WithTimeout(context.Background(), o.shutdownTimeout)
	defer cancel()
	select {
	case <-deregistered:
	case <-shutdown.Done():
	}
	server.Stop(shutdown)
	stopTending()
	gate.Remove()
	server.Close(shutdown)
	klog.InfoS("Stopped", "node", o.nodeName)
	return nil
}

// awaitFirstProbe keeps the first calls from being answered by a gate that has not looked yet.
func awaitFirstProbe(ctx context.Context, monitor *probe.Monitor, timeout time.Duration) {
	h := monitor.Health()
	if h.Reason != probe.NotProbedYet {
		return
	}
	select {
	case <-h.Superseded():
	case <-time.After(timeout + time.Second): // the probe itself ends after timeout
	case <-ctx.Done():
	}
}

// tend puts the gate's socket back when somebody removes it.
func tend(ctx context.Context, gate *socket.Keeper) {
	tick := time.NewTicker(tendInterval)
	defer tick.Stop()
	last := gate.State() // missing if it could not be put in place, which has been said
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		found, restored, err := gate.Tend()
		switch {
		case restored:
			klog.InfoS("Gate socket had been removed and is back")
		case found == last:
		case err != nil:
			klog.ErrorS(err, "Gate socket had been removed and cannot be put back; trying again")
		case found == socket.Replaced:
			klog.InfoS("Gate socket has a successor, which now gets new connections")
		}
		last = found
	}
}
