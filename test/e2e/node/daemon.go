package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// daemon is a program of the node and at most one process of it. It is safe for concurrent use.
type daemon struct {
	name string
	path string
	args []string
	env  []string
	// log is a file that every process appends to.
	log string
	// start starts a command where the daemon belongs.
	start func(*exec.Cmd) error
	// died is called when a process ends that nobody stopped.
	died func(error)

	mu  sync.Mutex
	run *process
}

type process struct {
	cmd *exec.Cmd
	// wanted is true once we ask for the end; guarded by daemon.mu.
	wanted bool
	done   chan struct{}
}

// Start starts a process.
func (d *daemon) Start() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run != nil {
		return fmt.Errorf("%s runs already", d.name)
	}
	log, err := os.OpenFile(d.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(d.path, d.args...)
	cmd.Env = d.env
	cmd.Stdout, cmd.Stderr = log, log
	if err := d.start(cmd); err != nil {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	run := &process{cmd: cmd, done: make(chan struct{})}
	d.run = run
	go func() {
		err := cmd.Wait()
		d.mu.Lock()
		wanted := run.wanted
		d.run = nil
		d.mu.Unlock()
		close(run.done)
		if !wanted {
			if err == nil {
				err = errors.New("exit status 0")
			}
			d.died(fmt.Errorf("%s ended by itself: %w; its log is %s", d.name, err, d.log))
		}
	}()
	return nil
}

// stopGrace is how long a daemon may take to end.
const stopGrace = 30 * time.Second

// Stop sends SIGTERM, and SIGKILL to a process that does not end. It is content when nothing runs.
func (d *daemon) Stop() {
	run := d.signal(syscall.SIGTERM)
	if run == nil {
		return
	}
	select {
	case <-run.done:
	case <-time.After(stopGrace):
		d.Kill()
	}
}

// Kill sends SIGKILL and waits.
func (d *daemon) Kill() {
	if run := d.signal(syscall.SIGKILL); run != nil {
		<-run.done
	}
}

func (d *daemon) signal(sig syscall.Signal) *process {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.run == nil {
		return nil
	}
	d.run.wanted = true
	_ = d.run.cmd.Process.Signal(sig) // it may have ended this moment; done tells
	return d.run
}
