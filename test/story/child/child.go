// Package child runs programs as child processes that can be stopped, killed and started again, and
// that do not outlive their parent.
package child

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Program is a program and at most one running process of it. It is safe for concurrent use.
type Program struct {
	// Name is for messages.
	Name string
	Path string
	Args []string
	// Stdout and Stderr receive what every process of the program writes.
	Stdout, Stderr io.Writer
	// Died is called when a process ends that was neither stopped nor killed.
	Died func(error)

	mu  sync.Mutex
	run *process
}

type process struct {
	cmd *exec.Cmd
	// wanted is true once we ask for the end; guarded by Program.mu.
	wanted bool
	done   chan struct{}
	// err is what Wait returned; read it after done.
	err error
}

// Start starts a process.
func (p *Program) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run != nil {
		return fmt.Errorf("%s runs already", p.Name)
	}
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Stdout, cmd.Stderr = p.Stdout, p.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// The terminal's Ctrl-C is for us: we stop our children in order.
		Setpgid: true,
		// They end with us even if we are killed.
		Pdeathsig: syscall.SIGKILL,
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	run := &process{cmd: cmd, done: make(chan struct{})}
	p.run = run
	go func() {
		err := cmd.Wait()
		p.mu.Lock()
		run.err = err
		wanted := run.wanted
		p.run = nil
		p.mu.Unlock()
		close(run.done)
		if !wanted && p.Died != nil {
			p.Died(fmt.Errorf("%s ended by itself: %w", p.Name, ended(err)))
		}
	}()
	return nil
}

// Kill sends SIGKILL and waits. It is content when nothing runs.
func (p *Program) Kill() {
	if run := p.signal(syscall.SIGKILL); run != nil {
		<-run.done
	}
}

// Stop sends SIGTERM and returns an error unless the process ends within grace, and well. It is
// content when nothing runs.
func (p *Program) Stop(grace time.Duration) error {
	run := p.signal(syscall.SIGTERM)
	if run == nil {
		return nil
	}
	select {
	case <-run.done:
	case <-time.After(grace):
		p.Kill()
		return fmt.Errorf("%s was still there %s after SIGTERM", p.Name, grace)
	}
	if run.err != nil {
		return fmt.Errorf("%s: %w", p.Name, run.err)
	}
	return nil
}

// signal reaches the process and whatever it may have started.
func (p *Program) signal(sig syscall.Signal) *process {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil {
		return nil
	}
	p.run.wanted = true
	// It may have ended this moment; then there is nobody to signal, and done tells.
	_ = syscall.Kill(-p.run.cmd.Process.Pid, sig)
	return p.run
}

func ended(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}
