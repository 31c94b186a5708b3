package node

import (
	"bufio"
	"context"
	"os/exec"
)

// Watch runs kubectl, as Kubectl does, and hands over each line of its standard output at once. It
// returns when kubectl ends, which at the latest it does when ctx does.
func (n *Node) Watch(ctx context.Context, line func(string), args ...string) error {
	cmd := exec.CommandContext(ctx, n.parts.Path("kubectl"), append([]string{"--kubeconfig=" + n.kubeconfig(admin)}, args...)...)
	cmd.Env = n.env
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := n.namespaces.Start(cmd); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		line(lines.Text())
	}
	return cmd.Wait()
}
