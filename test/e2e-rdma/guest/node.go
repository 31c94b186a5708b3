package main

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/child"
)

const (
	driverName   = "nfs.example.com"
	driverSocket = "/run/csi/csi.sock"
	// driverCalls gets the driver's line for each call before the caller gets its answer.
	driverCalls = "/run/csi/calls"
)

// node is a driver that runs for as long as the machine.
type node struct {
	report *report
	driver *child.Program
	calls  *os.File
}

func newNode(r *report) (*node, error) {
	if err := os.MkdirAll(filepath.Dir(driverSocket), 0o755); err != nil {
		return nil, err
	}
	calls, err := os.Create(driverCalls)
	if err != nil {
		return nil, err
	}
	n := &node{report: r, calls: calls}
	n.driver = &child.Program{
		Name: "driver", Path: "/bin/driver",
		Args:   []string{"--endpoint=" + driverSocket, "--state-dir=" + kubeletDir + "/volumes", "--name=" + driverName},
		Stdout: calls,
		Stderr: r.log("driver"),
		Died:   r.died,
	}
	return n, n.driver.Start()
}

func (n *node) close() {
	n.driver.Kill()
	n.calls.Close()
}

// gate is a gate process and the client that kubelet would be to it.
type gate struct {
	*child.Program
	*client
	registration string
}

// startGate starts a gate whose kubelet directory is dir, which has to be below kubeletDir.
func (n *node) startGate(dir string, flags ...string) (*gate, error) {
	socket := filepath.Join(dir, "plugins", driverName, "csi.sock")
	registry := filepath.Join(dir, "plugins_registry")
	for _, d := range []string{filepath.Dir(socket), registry} {
		if err := os.MkdirAll(d, 0o750); err != nil {
			return nil, err
		}
	}
	g := &gate{
		Program: &child.Program{
			Name: "gate", Path: gateBinary,
			Args: append([]string{
				"--csi-address=" + driverSocket,
				"--kubelet-registration-path=" + socket,
				"--plugin-registration-path=" + registry,
				"--node-name=vm",
			}, flags...),
			Stdout: n.report.log("gate"),
			Stderr: n.report.log("gate"),
			Died:   n.report.died,
		},
		registration: filepath.Join(registry, driverName+"-reg.sock"),
	}
	if err := g.Start(); err != nil {
		return nil, err
	}
	client, err := newClient(socket, filepath.Join(dir, "staging"))
	if err != nil {
		return nil, err
	}
	g.client = client
	return g, nil
}

// awaitRegistration waits for the socket by which kubelet finds the driver.
func (g *gate) awaitRegistration() error {
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(g.registration); err == nil {
			return nil
		} else if time.Now().After(deadline) {
			return fmt.Errorf("the gate does not register the driver: %w", err)
		}
	}
}

// end stops the gate as a pod's end does.
func (g *gate) end() error {
	g.client.close()
	return g.Stop(10 * time.Second)
}
