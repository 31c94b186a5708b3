package registration

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// An operator has to tell a node that was deregistered on purpose from one on which something is in the way.
func TestStatsSayWhatIsWantedAndWhatIsInTheWay(t *testing.T) {
	r := newRig(t, nil)
	want := func(when string, registered, wanted bool, obstacle string) {
		t.Helper()
		st := r.Stats()
		if st.Registered != registered || st.Wanted != wanted || !strings.Contains(st.Obstacle, obstacle) || (obstacle == "") != (st.Obstacle == "") {
			t.Errorf("%s: %+v", when, st)
		}
	}
	want("before anything is known", false, true, "")

	r.healthy()
	if err := os.MkdirAll(r.path()+"/x", 0o755); err != nil { // nothing can be renamed over that
		t.Fatal(err)
	}
	r.run(time.Second)
	want("something is where the socket belongs", false, true, r.path())
	if err := os.RemoveAll(r.path()); err != nil {
		t.Fatal(err)
	}
	r.run(time.Second)
	want("registered", true, true, "")

	r.notify(r.now, &registerapi.RegistrationStatus{Error: "no such node"})
	want("refused by kubelet", true, true, "no such node")
	r.run(2 * time.Second)
	want("a fresh socket, about which kubelet has said nothing", true, true, "no such node")
	r.notify(r.now, &registerapi.RegistrationStatus{PluginRegistered: true})
	want("registered by kubelet", true, true, "")

	r.unhealthy()
	r.plugin.volumes = 1
	r.run(10 * time.Second)
	want("lasting trouble, with a volume", true, true, "")
	r.plugin.volumes = 0
	r.run(time.Minute)
	want("deregistered", false, false, "")
}

func TestADriverThatIsNotReadyIsAnObstacle(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Timeout = time.Millisecond })
	r.Registrar.Driver = &slowDriver{plugin: r.plugin, seen: func() string { return r.Stats().Obstacle }}
	if !r.introduce(t.Context()) {
		t.Fatal("the driver was not met")
	}
	const waiting = "waiting for the CSI driver: NodeGetInfo: not yet"
	if d := r.Registrar.Driver.(*slowDriver); len(d.obstacles) != 2 || d.obstacles[0] != "" || d.obstacles[1] != waiting {
		t.Errorf("while it was asked: %q", d.obstacles)
	}
	if st := r.Stats(); st.Obstacle != "" {
		t.Errorf("once it is ready: %q", st.Obstacle)
	}
}

// slowDriver is ready when it is asked for the second time, and notes what the Stats say each time.
type slowDriver struct {
	*plugin
	seen      func() string
	obstacles []string
}

func (d *slowDriver) Ready(context.Context) error {
	d.obstacles = append(d.obstacles, d.seen())
	if len(d.obstacles) < 2 {
		return errors.New("NodeGetInfo: not yet")
	}
	return nil
}
