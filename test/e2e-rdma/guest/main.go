// Command guest is /init of the virtual machine: it makes a node with a soft-RoCE device, runs the
// gate and the bundled CSI driver on it, breaks the device and reports what the gate does.
package main

import (
	"context"
	"flag"
	"os"

	"golang.org/x/sys/unix"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/e2e-rdma/vm"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == holdCommand {
		hold(os.Args[2])
	}
	events := flag.Int("events", 0, "how many link-downs to time")
	faults := flag.Bool("faults", true, "make the faults too")
	bench := flag.Bool("bench", false, "time a probe and the usual tools instead")
	verbose := flag.Bool("v", false, "log much")
	flag.Parse()

	// Without these there is no report either. A panic of this process is one of the kernel's.
	if err := mountAll(); err != nil {
		panic(err)
	}
	out, err := os.OpenFile(vm.ReportPort, os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	r := newReport(out, *verbose)
	if *bench {
		err = runBench(context.Background(), r)
	} else {
		err = run(context.Background(), r, *faults, *events)
	}
	if err != nil {
		r.fail("test", err)
	}
	r.end()
	powerOff(out)
}

// run ends with an error where going on makes no sense. Other failures are in the report.
func run(ctx context.Context, r *report, faults bool, events int) error {
	if err := loadModules(); err != nil {
		return err
	}
	n, err := newNode(r)
	if err != nil {
		return err
	}
	defer n.close()
	if faults {
		if err := testDevice(ctx, r, n); err != nil {
			return err
		}
	}
	if events > 0 {
		return testEvents(ctx, r, n, events)
	}
	return nil
}

// testDevice does to one device all that can be done to it.
func testDevice(ctx context.Context, r *report, n *node) error {
	w, err := newWire(0)
	if err != nil {
		return err
	}
	for _, test := range []func(context.Context, *report, *node, *wire) error{testFaults, testNamespaces, testDeletion} {
		if err := test(ctx, r, n, w); err != nil {
			return err
		}
	}
	return nil
}

// powerOff waits until the serial line has taken the last byte.
func powerOff(out *os.File) {
	const drain = 1
	_ = unix.IoctlSetInt(int(out.Fd()), unix.TCSBRK, drain)
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		panic(err)
	}
}
