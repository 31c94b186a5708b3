// Command e2e-rdma runs the gate on a real RDMA stack: it boots a stock Debian kernel in a small
// virtual machine, where soft-RoCE makes an RDMA device out of an Ethernet interface, and the
// program in guest breaks that device in every way it can and watches the gate.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e-rdma/vm"
)

// modules are what the guest needs beyond their own dependencies. rdma_rxe asks for crc32 by its
// algorithm's name, of which module dependencies know nothing.
var modules = []string{"crc32_generic", "ib_uverbs", "rdma_rxe", "veth"}

type options struct {
	gate, driver, guest, cache string
	timeout                    time.Duration
	events                     int
	faults, bench, verbose     bool
}

func main() {
	var o options
	flag.StringVar(&o.gate, "gate", "build/csi-rdma-gate", "static `binary` of the gate")
	flag.StringVar(&o.driver, "driver", "build/driver", "static `binary` of the bundled CSI driver")
	flag.StringVar(&o.guest, "guest", "build/e2e-rdma/guest", "static `binary` of the program in guest")
	flag.StringVar(&o.cache, "cache", "build/e2e-rdma", "`directory` that keeps the kernel from run to run")
	flag.DurationVar(&o.timeout, "timeout", 15*time.Minute, "how long the virtual machine may run")
	flag.IntVar(&o.events, "events", 100, "how many link-downs have to close the gate before its next tick, all but 5 in 100")
	flag.BoolVar(&o.faults, "faults", true, "make the faults too, not only the link-downs")
	flag.BoolVar(&o.bench, "bench", false, "instead of all that, time a probe, and beside it the usual RDMA tools; needs neither gate nor driver")
	flag.BoolVar(&o.verbose, "v", false, "show the machine's console, the logs of gate and driver, and what sysfs says in each fault")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "e2e-rdma:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	kernel, err := vm.FetchKernel(ctx, o.cache)
	if err != nil {
		return err
	}
	files, initArgs, err := o.guestFiles(ctx, kernel)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "e2e-rdma-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	initrd := filepath.Join(dir, "initrd")
	if err := vm.WriteInitrd(initrd, files); err != nil {
		return err
	}

	console := &console{}
	if o.verbose {
		console.copy = os.Stderr
	}
	machine := vm.Machine{
		Kernel:   kernel.Image,
		Initrd:   initrd,
		InitArgs: initArgs,
		Report:   os.Stdout,
		Console:  console,
	}
	fmt.Printf("booting Linux %s\n", kernel.Release)
	limited, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("the virtual machine had not finished after %s", o.timeout))
	defer cancel()
	err = machine.Run(limited)
	if cause := context.Cause(ctx); cause != nil {
		return cause // somebody at the terminal: they know
	}
	if tail := console.tail(); err != nil && !errors.Is(err, vm.ErrTestsFailed) && !o.verbose && len(tail) > 0 {
		fmt.Fprintf(os.Stderr, "The last lines of the machine's console:\n%s\n", tail)
	}
	return err
}

// guestFiles is what goes into the machine, and what it is told to do with it.
func (o options) guestFiles(ctx context.Context, kernel *vm.Kernel) (files []vm.File, initArgs []string, err error) {
	files = []vm.File{{Path: "init", Source: o.guest}}
	if o.bench {
		tools, err := vm.FetchTools(ctx, o.cache)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, tools...)
		initArgs = []string{"-bench"}
	} else {
		files = append(files, vm.File{Path: "bin/csi-rdma-gate", Source: o.gate}, vm.File{Path: "bin/driver", Source: o.driver})
		initArgs = []string{
			fmt.Sprintf("-events=%d", o.events), fmt.Sprintf("-faults=%t", o.faults), fmt.Sprintf("-v=%t", o.verbose),
		}
	}
	loadOrder, err := kernel.Modules(modules...)
	if err != nil {
		return nil, nil, err
	}
	for i, module := range loadOrder {
		files = append(files, vm.File{Path: fmt.Sprintf("modules/%02d-%s", i, filepath.Base(module)), Source: module})
	}
	return files, initArgs, nil
}

// console keeps the end of what the kernel and qemu say, and copies all of it if asked to.
type console struct {
	copy io.Writer
	kept bytes.Buffer
}

// consoleTail is enough for a kernel's panic or the stack traces of a program.
const consoleTail = 8 << 10

func (c *console) Write(b []byte) (int, error) {
	if c.copy != nil {
		_, _ = c.copy.Write(b)
	}
	c.kept.Write(b)
	if surplus := c.kept.Len() - consoleTail; surplus > 0 {
		c.kept.Next(surplus)
	}
	return len(b), nil
}

func (c *console) tail() []byte { return c.kept.Bytes() }
