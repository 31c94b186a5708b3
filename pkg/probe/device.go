package probe

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// device is one RDMA device during one look at it.
type device struct {
	*reader
	name   string
	layers layers
}

// layers is what a look at a port reads.
type layers struct {
	Checks
	minRateGbps float64
}

// sighting is what a look found, kept for the next look to start from. Immutable.
type sighting struct {
	// at is when everything was read; zero when a look got no further than the port numbers.
	at time.Time
	// matched says, for each selector, whether it named one of the ports.
	matched []bool
	// vanished: it was listed, but is not there.
	vanished bool
	// skipped is why a device does not count although there is no selection.
	skipped string
	ports   []portSighting
	verbs   verbsSighting
}

func (d *device) path(elem ...string) string {
	return path.Join(classDir, d.name, path.Join(elem...))
}

// identify finds out which ports are selected and reads no more than that takes. The error says why
// the ports of the device cannot be told.
func (d *device) identify(selectors []Selector) (*sighting, error) {
	numbers, err := d.portNumbers()
	if err != nil {
		return d.presumed(selectors), err
	}
	s := &sighting{matched: make([]bool, len(selectors))}
	if len(selectors) == 0 {
		if s.skipped = d.notTheFabric(); s.skipped == "" {
			s.ports = d.unread(numbers)
		}
		return s, nil
	}
	chosen := make(map[int]bool)
	for i, sel := range selectors {
		for _, n := range sel.match(d, numbers) {
			s.matched[i], chosen[n] = true, true
		}
	}
	s.ports = d.unread(keep(numbers, func(n int) bool { return chosen[n] }))
	return s, nil
}

// presumed is what may be said of a device that tells nothing: the ports that selectors name, else
// port 1, which every device has. Selectors that go by more than the name count as matching, since
// nobody can say that they do not.
func (d *device) presumed(selectors []Selector) *sighting {
	s := &sighting{matched: make([]bool, len(selectors))}
	var numbers []int
	for i, sel := range selectors {
		if s.matched[i] = sel.mayMatch(d.name); s.matched[i] && sel.port != 0 {
			numbers = append(numbers, sel.port)
		}
	}
	if len(numbers) == 0 {
		numbers = []int{1}
	}
	s.ports = d.unread(ascending(numbers))
	return s
}

func (d *device) unread(numbers []int) []portSighting {
	ports := make([]portSighting, len(numbers))
	for i, n := range numbers {
		ports[i] = portSighting{Port: Port{Device: d.name, Number: n}, gidIndex: -1}
	}
	return ports
}

// look reads everything about the selected ports. It tells early which ports those are, in case it
// never gets to an end.
func (d *device) look(selectors []Selector, prev *sighting, early func(*sighting)) *sighting {
	s, err := d.identify(selectors)
	early(s)
	if err != nil {
		s = s.withFinding(unreadable("ports", err))
		s.vanished = isAbsent(err)
		return s
	}
	full := *s
	full.at, full.ports = time.Now(), nil
	if driver := d.driver(); len(s.ports) > 0 && reportsConstants(driver) {
		full.ports = s.ports
		return full.withFinding(finding{DriverStateFixed, "driver " + driver + " reports the same state whatever the network does"})
	}
	if len(s.ports) > 0 && d.layers.Verbs {
		full.verbs = d.checkVerbs(prev.verbsOrZero())
	}
	for _, p := range s.ports {
		full.ports = append(full.ports, d.port(p.Number).look(prev.gidIndex(p.Number), full.verbs))
	}
	return &full
}

// glance reads what changes when a link does. If nothing has changed, the last sighting still
// holds.
func (d *device) glance(last *sighting) bool {
	for _, p := range last.ports {
		if p.live != "" && p.live != d.port(p.Number).live(p.watched) {
			return false
		}
	}
	return true
}

// withFinding is a copy of s in which every port has the same finding.
func (s *sighting) withFinding(f finding) *sighting {
	c := *s
	c.ports = make([]portSighting, len(s.ports))
	for i, p := range s.ports {
		p.set(f)
		c.ports[i] = p
	}
	return &c
}

// troubled says that a port is not healthy.
func (s *sighting) troubled() bool {
	return slices.ContainsFunc(s.ports, func(p portSighting) bool { return p.Verdict != Healthy })
}

// verbsOrZero and gidIndex work on the nil sighting of a device that was never looked at.
func (s *sighting) verbsOrZero() verbsSighting {
	if s == nil {
		return verbsSighting{}
	}
	return s.verbs
}

func (s *sighting) gidIndex(number int) int {
	if s != nil {
		for _, p := range s.ports {
			if p.Number == number {
				return p.gidIndex
			}
		}
	}
	return -1
}

func (d *device) portNumbers() ([]int, error) {
	names, err := d.readDir(d.path("ports"))
	if err != nil {
		return nil, err
	}
	var numbers []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil && n > 0 {
			numbers = append(numbers, n)
		}
	}
	if len(numbers) == 0 {
		return nil, errEmpty
	}
	return ascending(numbers), nil
}

func ascending(numbers []int) []int {
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

// notTheFabric is why a device does not count unless it is selected.
func (d *device) notTheFabric() string {
	if d.exists(d.path("device/physfn")) {
		return "virtual function"
	}
	if driver := d.driver(); reportsConstants(driver) {
		return "driver " + driver + " reports constants"
	}
	return ""
}

// reportsConstants names the drivers whose port state is no evidence of anything.
func reportsConstants(driver string) bool { return driver == "efa" }

// driver is the driver of the device below; soft devices have none.
func (d *device) driver() string {
	if link, err := d.readlink(d.path("device/driver")); err == nil {
		return path.Base(link)
	}
	return d.uevent("DRIVER")
}

func (d *device) pciAddress() string {
	if link, err := d.readlink(d.path("device")); err == nil {
		return strings.ToLower(path.Base(link))
	}
	return strings.ToLower(d.uevent("PCI_SLOT_NAME"))
}

// uevent says what links say where a copied tree holds directories instead.
func (d *device) uevent(key string) string {
	data, err := d.readFile(d.path("device/uevent"))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok && k == key {
			return v
		}
	}
	return ""
}

// isRNIC says that the device speaks iWARP, whose ports call themselves Ethernet.
func (d *device) isRNIC() bool {
	id, err := parseID(d.attr(d.path("node_type")))
	return err == nil && id == 4
}

// parseID reads the number that stands before a name, as in "4: ACTIVE". Drivers exist that put
// the wrong name there, so the name never counts.
func parseID(a attr) (int, error) {
	if a.err != nil {
		return 0, a.err
	}
	number, _, _ := strings.Cut(a.text, ":")
	id, err := strconv.ParseUint(strings.TrimSpace(number), 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number and a name", tidy(a.text))
	}
	return int(id), nil
}
