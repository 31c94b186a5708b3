// Command e2e runs the gate on a real Kubernetes node, which it makes on this machine in namespaces of
// its own: kubelet, containerd and a control plane, built from their modules or taken from Debian
// packages. What users deploy is deployed there, in front of the bundled driver and on simulated
// hardware, and what users see is asked for by kubectl.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/harness"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/image"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/node"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/parts"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e/scenarios"
)

// allScenarios are played in this order.
func allScenarios() []harness.Scenario {
	return slices.Concat(
		scenarios.Story(),
		scenarios.Registration(),
		scenarios.Topology(),
		scenarios.Seen(),
	)
}

type options struct {
	gate, driver, registrar, source, manifest, cache string
	kubernetes, run                                  string
	buildOnly                                        bool
}

func main() {
	// The node's first process lives as long as the thread that starts it; and this thread, by whose
	// namespaces the program is known, shall not be one that enters the node's.
	runtime.LockOSThread()
	if len(os.Args) == 3 && os.Args[1] == node.InsideCommand {
		node.Inside(os.Args[2])
		return
	}
	var o options
	flag.StringVar(&o.gate, "gate", "build/csi-rdma-gate", "static `binary` of the gate")
	flag.StringVar(&o.driver, "driver", "build/driver", "static `binary` of the bundled CSI driver")
	flag.StringVar(&o.registrar, "registrar", "build/registrar", "static `binary` of the stand-in for csi-node-driver-registrar")
	flag.StringVar(&o.source, "source", "test/e2e", "`directory` of this program's module, for the modules below it")
	flag.StringVar(&o.manifest, "manifest", "examples/daemonset.yaml", "`file` with the DaemonSet to deploy")
	flag.StringVar(&o.cache, "cache", "build/e2e", "`directory` that keeps the node's parts from run to run")
	flag.StringVar(&o.kubernetes, "kubernetes", parts.Versions(parts.Releases()), "Kubernetes `versions`, separated by commas")
	flag.StringVar(&o.run, "run", "", "play only the scenarios whose names match this `regexp`")
	flag.BoolVar(&o.buildOnly, "build-only", false, "fill the cache and end")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}

var errFailed = errors.New("failed")

func run(ctx context.Context, o options) error {
	releases, err := parts.Pick(o.kubernetes)
	if err != nil {
		return err
	}
	pattern, err := regexp.Compile(o.run)
	if err != nil {
		return err
	}
	chosen := slices.DeleteFunc(allScenarios(), func(s harness.Scenario) bool { return !pattern.MatchString(s.Name) })
	if len(chosen) == 0 {
		return fmt.Errorf("no scenario matches %q", o.run)
	}
	all := make([]*parts.Parts, len(releases))
	for i, r := range releases {
		if all[i], err = parts.Get(ctx, r, o.source, o.cache); err != nil {
			return err
		}
	}
	if o.buildOnly {
		return nil
	}
	var tables []*harness.Table
	for i, r := range releases {
		table := &harness.Table{Title: "Kubernetes " + r.Version, Live: os.Stderr}
		tables = append(tables, table)
		o.play(ctx, all[i], chosen, table)
		if ctx.Err() != nil {
			break
		}
	}
	failed := false
	for _, t := range tables {
		t.Print(os.Stdout)
		failed = failed || t.Failed()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if failed {
		return errFailed
	}
	return nil
}

// play makes a node, plays the scenarios on it and sees that nothing is left of it.
func (o options) play(ctx context.Context, p *parts.Parts, chosen []harness.Scenario, table *harness.Table) {
	fmt.Fprintf(os.Stderr, "\n%s\n", table.Title)
	before := node.TakeFootprint()
	began := time.Now()
	n, err := node.Start(ctx, p, o.images(p))
	table.Add("node", "Ready", time.Since(began), err)
	name := ""
	if err == nil {
		name = n.Run()
		o.playOn(ctx, n, chosen, table)
		began = time.Now()
		err = n.Close()
		table.Add("node", "removed", time.Since(began), err)
	}
	began = time.Now()
	err = before.Compare(ctx, name)
	table.Add("node", "nothing is left behind", time.Since(began), err)
}

func (o options) playOn(ctx context.Context, n *node.Node, chosen []harness.Scenario, table *harness.Table) {
	cfg := harness.Config{Node: n, Manifest: o.manifest, Table: table, Evidence: os.Stderr}
	usable := true
	for _, s := range chosen {
		if usable {
			usable = harness.Play(ctx, cfg, s)
		} else if ctx.Err() == nil {
			table.Add(s.Name, "not played", 0, errors.New("the node is not fit for it after what failed"))
		}
	}
}

func (o options) images(p *parts.Parts) []image.Image {
	name := filepath.Base(o.gate)
	return []image.Image{
		{
			Name:       harness.GateImage,
			Files:      map[string]string{name: o.gate},
			Links:      map[string]string{"csi-node-driver-registrar": name},
			Entrypoint: []string{"/" + name},
		},
		{Name: harness.DriverImage, Files: map[string]string{"driver": o.driver}, Entrypoint: []string{"/driver"}},
		{Name: harness.RegistrarImage, Files: map[string]string{"registrar": o.registrar}, Entrypoint: []string{"/registrar"}},
		{Name: harness.BusyboxImage, Files: map[string]string{"bin/busybox": p.Path("busybox")}, Entrypoint: []string{"/bin/busybox"}},
	}
}
