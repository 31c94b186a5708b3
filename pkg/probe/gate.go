package probe

import "time"

// gate decides whether new mounts may pass. It closes on the first bad news and takes its time to
// believe good news, for a port that flaps looks healthy half the time.
type gate struct {
	unknownHold      time.Duration
	recoverThreshold int

	open         bool
	openedOnce   bool
	healthyTicks int       // in a row
	unknownSince time.Time // zero unless the last verdict was unknown
}

// step takes in a verdict. Only ticks open the gate, or count towards opening it; any probe can
// close it.
func (g *gate) step(v Verdict, tick bool, now time.Time) {
	if v != Unknown {
		g.unknownSince = time.Time{}
	}
	if v != Healthy {
		g.healthyTicks = 0
	}
	switch v {
	case Healthy:
		if tick {
			g.healthyTick()
		}
	case Unhealthy:
		g.open = false
	default:
		if g.unknownSince.IsZero() {
			g.unknownSince = now
		}
		if now.Sub(g.unknownSince) >= g.unknownHold {
			g.open = false
		}
	}
}

// healthyTick opens the gate at once the first time: nothing has flapped yet.
func (g *gate) healthyTick() {
	g.healthyTicks++
	if g.healthyTicks >= g.recoverThreshold || !g.openedOnce {
		g.open, g.openedOnce = true, true
	}
}
