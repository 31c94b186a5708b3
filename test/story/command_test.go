package story_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/rdmanode"
	"github.com/csi-rdma-gate/csi-rdma-gate/test/story/storytest"
)

// The command as a user interrupts it: exit status 0 and nothing left, whenever it happens.
func (b binaries) testInterrupted(t *testing.T) {
	var running sync.WaitGroup
	defer running.Wait()
	for i, sig := range []syscall.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGINT, syscall.SIGINT, syscall.SIGTERM,
		syscall.SIGINT, syscall.SIGINT, syscall.SIGHUP, syscall.SIGINT, syscall.SIGINT,
	} {
		// Ten equal parts of the story, a random moment in each.
		after := time.Duration(i)*500*time.Millisecond + rand.N(500*time.Millisecond)
		running.Go(func() {
			t.Run(fmt.Sprintf("%s after %s", sig, after.Round(time.Millisecond)), func(t *testing.T) {
				var out bytes.Buffer
				cmd := exec.Command(b.run, "-gate", b.gate, "-driver", b.driver)
				dir := storytest.TempDir(t)
				cmd.Env = append(cmd.Environ(), "TMPDIR="+dir)
				first := &firstWrite{w: &out, done: make(chan struct{})}
				cmd.Stdout, cmd.Stderr = first, first
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				ended := make(chan error, 1)
				go func() { ended <- cmd.Wait() }()
				// Before the first line the command may not yet have asked for signals.
				<-first.done
				time.Sleep(after)
				if err := cmd.Process.Signal(sig); err != nil {
					t.Logf("the story was over: %v", err)
				}
				if err := <-ended; err != nil {
					t.Errorf("%v\n%s", err, out.Bytes())
				}
				if !strings.Contains(out.String(), dir+"/") {
					t.Errorf("it took place elsewhere than in %s:\n%s", dir, out.Bytes())
				}
			})
		})
	}
}

// An ordinary user gets plain directories for mounts and three layers of four.
func (b binaries) testOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the whole test runs as one")
	}
	dir := storytest.TempDir(t)
	const nobody = 65534
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	for _, bin := range []string{b.gate, b.run} {
		// t.TempDir is below a directory that only its owner may enter.
		if err := os.Chmod(filepath.Dir(filepath.Dir(bin)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(b.run, "-gate", b.gate, "-driver", b.driver)
	cmd.Dir = "/"
	cmd.Env = append(cmd.Environ(), "TMPDIR="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, want := range []string{"--rdma-checks=port,gid,netdev\n", "makes plain directories\n", "code = FailedPrecondition", "That is all."} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the story does not say %q:\n%s", want, out)
		}
	}
}

// A tree from elsewhere is only looked at.
func (b binaries) testHostRoot(t *testing.T) {
	node, err := rdmanode.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		prepare func(string) error
		want    []string
	}{
		"healthy": {node.Plug, []string{
			"node: healthy\n", "nfs.example.com is registered\n", "nfs.example.com/rdma-fabric=fec0000000000001", "nfs.example.com/rdma-link-layer=infiniband",
		}},
		"unhealthy": {node.Pull, []string{"PhysLinkDown", "does not: the gate would refuse every new mount\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.prepare(rdmanode.InfiniBand); err != nil {
				t.Fatal(err)
			}
			args := []string{"-gate", b.gate, "-driver", b.driver, "-host-root", node.Root(), "--", "--rdma-device=" + rdmanode.InfiniBand}
			if !node.Verbs() {
				args = append(args, "--rdma-checks=port,gid,netdev")
			}
			cmd := exec.Command(b.run, args...)
			cmd.Env = append(cmd.Environ(), "TMPDIR="+storytest.TempDir(t))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
			for _, want := range c.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("does not say %q:\n%s", want, out)
				}
			}
		})
	}
}

// firstWrite closes done at the first write.
type firstWrite struct {
	w    *bytes.Buffer
	once sync.Once
	done chan struct{}
}

func (f *firstWrite) Write(b []byte) (int, error) {
	f.once.Do(func() { close(f.done) })
	return f.w.Write(b)
}
