package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

// holdCommand makes this program a process that holds a device open, as a verbs application does.
const holdCommand = "hold"

// hold opens a device and waits to be killed.
func hold(device string) {
	fd, err := unix.Open(device, unix.O_RDWR, 0)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hold:", err)
		os.Exit(1)
	}
	fmt.Println("holding descriptor", fd)
	for {
		_ = unix.Pause()
	}
}

// holder is such a process.
type holder struct{ cmd *exec.Cmd }

// startHolder returns once the device is open.
func startHolder(device string) (*holder, error) {
	h := &holder{exec.Command("/proc/self/exe", holdCommand, device)}
	h.cmd.Stderr = os.Stderr
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		h.kill()
		return nil, fmt.Errorf("open %s in another process: %w", device, err)
	}
	return h, nil
}

func (h *holder) kill() {
	_ = h.cmd.Process.Kill() // or it has gone already
	_ = h.cmd.Wait()         // killed, as it has to be
}
