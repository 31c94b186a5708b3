package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
)

// Passed and Failed are what the guest reports as its last line.
const (
	Passed = "result: passed"
	Failed = "result: failed"
)

// ErrTestsFailed says that the guest ran to its end and has reported what failed.
var ErrTestsFailed = errors.New("failed")

// ReportPort is where the guest writes its report, as it sees it. The kernel has the first serial
// port for itself, so that its messages fall into no line of the report.
const ReportPort = "/dev/ttyS1"

const memory = "256M"

// Machine is a virtual machine without network and disk.
type Machine struct {
	Kernel, Initrd string
	// InitArgs are the arguments of /init.
	InitArgs []string
	// Report receives what the guest writes to ReportPort, Console what the kernel and qemu say.
	Report, Console io.Writer
}

// Run boots the machine and waits until it powers itself off. It is gone when Run returns, or when
// this process ends.
func (m Machine) Run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		// Emulation, always: /dev/kvm may be there and yet hang the guest.
		"-accel", "tcg", "-m", memory,
		"-nodefaults", "-no-user-config", "-display", "none",
		"-chardev", "file,id=console,path=/dev/fd/2", "-serial", "chardev:console",
		"-chardev", "file,id=report,path=/dev/fd/1", "-serial", "chardev:report",
		"-no-reboot", // with panic=-1, so that a panic ends qemu
		"-kernel", m.Kernel, "-initrd", m.Initrd,
		"-append", "console=ttyS0 loglevel=5 oops=panic panic=-1 -- "+strings.Join(m.InitArgs, " "),
	)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true, // Ctrl-C is for us, and we kill qemu
		Pdeathsig: syscall.SIGKILL,
	}
	panics := &panicFinder{w: m.Console}
	cmd.Stderr = panics
	report, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			err = fmt.Errorf("%w; apt-get install --no-install-recommends qemu-system-x86", err)
		}
		return err
	}
	result := copyReport(m.Report, report)
	err = cmd.Wait()
	switch {
	case result == Passed:
		return nil
	case result == Failed:
		return ErrTestsFailed
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case panics.found != "":
		return errors.New(panics.found)
	case err != nil:
		return fmt.Errorf("qemu: %w", err)
	}
	return errors.New("the virtual machine ended without a result")
}

// copyReport passes lines on until the result, which it returns.
func copyReport(w io.Writer, r io.Reader) (result string) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		if line == Passed || line == Failed {
			result = line
			continue
		}
		_, _ = fmt.Fprintln(w, line)
	}
	_, _ = io.Copy(io.Discard, r) // after a line too long to be one
	return result
}

// panicFinder passes everything on and remembers the line of the kernel's that says why it gave up.
type panicFinder struct {
	w     io.Writer
	part  []byte
	found string
}

func (p *panicFinder) Write(b []byte) (int, error) {
	p.part = append(p.part, b...)
	for {
		line, rest, ok := bytes.Cut(p.part, []byte("\n"))
		if !ok {
			return p.w.Write(b)
		}
		if i := bytes.Index(line, []byte("Kernel panic")); i >= 0 && p.found == "" {
			p.found = strings.TrimSpace(string(line[i:]))
		}
		p.part = rest
	}
}
