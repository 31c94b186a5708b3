package probe

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// overTree runs a Monitor over a tree on which everything is in order, from half an interval after
// the first tick.
func overTree(t *testing.T, c Config, f func(tr *tree, m *Monitor)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tr := newTree(t, roce)
		m := NewMonitor(newProber(c, tr), MonitorConfig{UnknownHold: 30 * time.Second, RecoverThreshold: 3})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { m.Run(ctx); close(ended) }()
		time.Sleep(500 * time.Millisecond)
		if !m.Health().Open {
			t.Fatalf("closed at first: %v", m.Health().Cause)
		}
		f(tr, m)
		cancel()
		<-ended
	})
}

// wantGate lets time pass and looks at the gate.
func wantGate(t *testing.T, m *Monitor, after time.Duration, open bool, cause string) {
	t.Helper()
	time.Sleep(after)
	synctest.Wait()
	if h := m.Health(); h.Open != open || joinTroubles(h.Cause) != cause {
		t.Errorf("open is %v because of %q", h.Open, joinTroubles(h.Cause))
	}
}

func TestPortGoesDownAndComesBack(t *testing.T) {
	overTree(t, Config{Selectors: selectors(t, "mlx5_0")}, func(tr *tree, m *Monitor) {
		tr.set(state0, "1: DOWN")
		wantGate(t, m, time.Second, false, "mlx5_0/1 PortNotActive (state 1: DOWN, phys_state 5: LinkUp)")
		tr.set(state0, "4: ACTIVE")
		wantGate(t, m, 2*time.Second, false, "mlx5_0/1 PortNotActive (state 1: DOWN, phys_state 5: LinkUp)")
		wantGate(t, m, time.Second, true, "")
	})
}

func TestEmptiedGIDTableClosesAtTheKick(t *testing.T) {
	overTree(t, Config{Selectors: selectors(t, "mlx5_0")}, func(tr *tree, m *Monitor) {
		tr.set("sys/class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0000")
		wantGate(t, m, 5*time.Second, true, "")
		m.Kick()
		wantGate(t, m, 0, false, "mlx5_0/1 GIDMissing (fe80:0000:0000:0000:0000:0000:0000:0000 has no interface id, nor has any of 1 entries)")
	})
}

func TestHangClosesAfterTheTimeoutAndTicksGoOn(t *testing.T) {
	overTree(t, Config{Selectors: selectors(t, "mlx5_0")}, func(tr *tree, m *Monitor) {
		const cause = "mlx5_0/1 ProbeStuck (reading /" + state0 + " did not return within 3s)"
		release := tr.block(state0)
		wantGate(t, m, 3*time.Second, true, "")
		wantGate(t, m, time.Second, false, cause)
		wantGate(t, m, 26*time.Second, false, cause)
		if got := m.Health().UnhealthyTicks; got != 30 {
			t.Errorf("%d unhealthy ticks in 30 seconds", got)
		}
		release()
		wantGate(t, m, 3*time.Second, true, "")
	})
}

func TestLostDeviceIsMissedWithinATick(t *testing.T) {
	overTree(t, Config{AbsentOpen: true}, func(tr *tree, m *Monitor) {
		tr.remove("sys/class/infiniband/mlx5_0")
		tr.remove("sys/class/infiniband/mlx5_1")
		wantGate(t, m, time.Second, false, "NoDevices (/sys/class/infiniband is empty: no driver has registered a device)")
	})
}
