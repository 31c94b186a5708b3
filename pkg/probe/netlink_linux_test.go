package probe

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// linkMessage is as the kernel writes it: an ifinfomsg and attributes.
func linkMessage(t testing.TB, kind netlink.HeaderType, family byte, index int, flags uint32, attributes func(*netlink.AttributeEncoder)) netlink.Message {
	t.Helper()
	data := make([]byte, unix.SizeofIfInfomsg)
	data[0] = family
	binary.NativeEndian.PutUint32(data[4:], uint32(index))
	binary.NativeEndian.PutUint32(data[8:], flags)
	return message(t, kind, data, attributes)
}

func addressMessage(t testing.TB, kind netlink.HeaderType, index int, address netip.Prefix) netlink.Message {
	t.Helper()
	data := make([]byte, unix.SizeofIfAddrmsg)
	data[0], data[1] = unix.AF_INET, byte(address.Bits())
	if address.Addr().Is6() {
		data[0] = unix.AF_INET6
	}
	binary.NativeEndian.PutUint32(data[4:], uint32(index))
	return message(t, kind, data, func(ae *netlink.AttributeEncoder) {
		ae.Bytes(unix.IFA_LOCAL, address.Addr().AsSlice())
		ae.Bytes(unix.IFA_ADDRESS, address.Addr().AsSlice())
	})
}

func message(t testing.TB, kind netlink.HeaderType, data []byte, attributes func(*netlink.AttributeEncoder)) netlink.Message {
	t.Helper()
	ae := netlink.NewAttributeEncoder()
	if attributes != nil {
		attributes(ae)
	}
	encoded, err := ae.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return netlink.Message{Header: netlink.Header{Type: kind}, Data: append(data, encoded...)}
}

func TestParseLink(t *testing.T) {
	const up, promiscuous = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP, unix.IFF_PROMISC | unix.IFF_BROADCAST
	whole := func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, "bond0.5")
		ae.Bytes(unix.IFLA_ADDRESS, []byte{2, 0, 0, 0, 0, 1})
		ae.Uint32(unix.IFLA_LINK, 10)
		ae.Uint32(unix.IFLA_MASTER, 12)
		ae.Uint32(unix.IFLA_MTU, 9000)
		ae.Nested(unix.IFLA_LINKINFO, func(info *netlink.AttributeEncoder) error {
			info.String(unix.IFLA_INFO_KIND, "vlan")
			return nil
		})
	}
	for name, c := range map[string]struct {
		message netlink.Message
		want    linkNotice
	}{
		"everything": {
			linkMessage(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, 11, up|promiscuous, whole),
			linkNotice{index: 11, name: "bond0.5", lower: 10, master: 12, flags: up, address: "\x02\x00\x00\x00\x00\x01", kind: "vlan"},
		},
		"gone": {
			linkMessage(t, unix.RTM_DELLINK, unix.AF_UNSPEC, 3, 0, func(ae *netlink.AttributeEncoder) { ae.String(unix.IFLA_IFNAME, "a") }),
			linkNotice{index: 3, name: "a", gone: true},
		},
		"what is below is in another namespace": {
			linkMessage(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, 3, up, func(ae *netlink.AttributeEncoder) {
				ae.Uint32(unix.IFLA_LINK, 2)
				ae.Uint32(unix.IFLA_LINK_NETNSID, 0)
			}),
			linkNotice{index: 3, flags: up},
		},
		"no attributes": {linkMessage(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, 3, 0, nil), linkNotice{index: 3}},
	} {
		if n, ok := parseLink(c.message); !ok || n != c.want {
			t.Errorf("%s: %+v %v, want %+v", name, n, ok, c.want)
		}
	}
	for name, m := range map[string]netlink.Message{
		"of a bridge":        linkMessage(t, unix.RTM_DELLINK, unix.AF_BRIDGE, 11, 0, whole),
		"short":              {Data: make([]byte, unix.SizeofIfInfomsg-1)},
		"no index":           linkMessage(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, 0, 0, whole),
		"attribute cut off":  {Data: append(make([]byte, unix.SizeofIfInfomsg), 9, 0, 3, 0)},
		"master of one byte": linkMessage(t, unix.RTM_NEWLINK, unix.AF_UNSPEC, 3, 0, func(ae *netlink.AttributeEncoder) { ae.Uint8(unix.IFLA_MASTER, 1) }),
	} {
		if n, ok := parseLink(m); ok {
			t.Errorf("%s: %+v", name, n)
		}
	}
}

func TestParseAddress(t *testing.T) {
	a, b := netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("2001:db8::1/64")
	one, ok := parseAddress(addressMessage(t, unix.RTM_NEWADDR, 5, a))
	if !ok || one.index != 5 || one.gone || one.address == "" {
		t.Errorf("%+v %v", one, ok)
	}
	other, ok := parseAddress(addressMessage(t, unix.RTM_DELADDR, 5, b))
	if !ok || !other.gone || other.address == one.address {
		t.Errorf("%+v %v", other, ok)
	}
	tentative := addressMessage(t, unix.RTM_NEWADDR, 5, b)
	tentative.Data[2] = unix.IFA_F_TENTATIVE
	if n, ok := parseAddress(tentative); !ok || n.flags != unix.IFA_F_TENTATIVE {
		t.Errorf("%+v %v", n, ok)
	}
	for _, m := range []netlink.Message{{}, {Data: make([]byte, unix.SizeofIfAddrmsg)}, {Data: append(make([]byte, unix.SizeofIfAddrmsg), 1)}} {
		if n, ok := parseAddress(m); ok {
			t.Errorf("%+v", n)
		}
	}
}

func FuzzParseLink(f *testing.F) {
	f.Add(linkMessage(f, unix.RTM_NEWLINK, unix.AF_UNSPEC, 3, 1, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, "ens1f0")
		ae.Uint32(unix.IFLA_MASTER, 1)
		ae.Nested(unix.IFLA_LINKINFO, func(info *netlink.AttributeEncoder) error {
			info.String(unix.IFLA_INFO_KIND, "veth")
			return nil
		})
	}).Data)
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, ok := parseLink(netlink.Message{Data: data}); ok && n.index <= 0 {
			t.Errorf("%+v", n)
		}
	})
}

func FuzzParseAddress(f *testing.F) {
	f.Add(addressMessage(f, unix.RTM_NEWADDR, 3, netip.MustParsePrefix("10.0.0.1/24")).Data)
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, ok := parseAddress(netlink.Message{Data: data}); ok && n.index <= 0 {
			t.Errorf("%+v", n)
		}
	})
}

// kernel is a network namespace of a test's own, and a socket to change it by.
type kernel struct {
	*netlink.Conn
	t     *testing.T
	netns int
}

func newKernel(t *testing.T) *kernel {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("making a network namespace takes root")
	}
	var file *os.File
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			file, err = os.Open("/proc/thread-self/ns/net")
		}
		made <- err
	}()
	if err := <-made; err != nil {
		t.Skip("network namespace: ", err)
	}
	t.Cleanup(func() { file.Close() })
	k := &kernel{t: t, netns: int(file.Fd())}
	var err error
	if k.Conn, err = netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: k.netns}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return k
}

func (k *kernel) do(m netlink.Message, flags netlink.HeaderFlags) {
	k.t.Helper()
	m.Header.Flags = netlink.Request | netlink.Acknowledge | flags
	if _, err := k.Execute(m); errors.Is(err, unix.EOPNOTSUPP) {
		k.t.Skip("this kernel lacks the kind of interface")
	} else if err != nil {
		k.t.Fatal(err)
	}
}

// add makes an interface. A veth gets its peer's name, anything else what it sits on.
func (k *kernel) add(kind, name, peer string, lower int) (index int) {
	k.t.Helper()
	k.do(linkMessage(k.t, unix.RTM_NEWLINK, unix.AF_UNSPEC, 0, 0, func(ae *netlink.AttributeEncoder) {
		ae.String(unix.IFLA_IFNAME, name)
		if lower != 0 {
			ae.Uint32(unix.IFLA_LINK, uint32(lower))
		}
		ae.Nested(unix.IFLA_LINKINFO, func(info *netlink.AttributeEncoder) error {
			info.String(unix.IFLA_INFO_KIND, kind)
			if peer != "" {
				info.Nested(unix.IFLA_INFO_DATA, func(data *netlink.AttributeEncoder) error {
					const vethInfoPeer = 1
					data.Do(vethInfoPeer, func() ([]byte, error) {
						return linkMessage(k.t, 0, unix.AF_UNSPEC, 0, 0, func(ae *netlink.AttributeEncoder) { ae.String(unix.IFLA_IFNAME, peer) }).Data, nil
					})
					return nil
				})
			}
			return nil
		})
	}), netlink.Create|netlink.Excl)
	return k.find(name).index
}

func (k *kernel) find(name string) linkNotice {
	k.t.Helper()
	l, err := netlinkLookup(k.netns)(name, 0)
	if err != nil {
		k.t.Fatal(name, ": ", err)
	}
	return l
}

func (k *kernel) remove(index int) {
	k.t.Helper()
	k.do(linkMessage(k.t, unix.RTM_DELLINK, unix.AF_UNSPEC, index, 0, nil), 0)
}

func (k *kernel) set(index int, flags, change uint32, attributes func(*netlink.AttributeEncoder)) {
	k.t.Helper()
	m := linkMessage(k.t, unix.RTM_NEWLINK, unix.AF_UNSPEC, index, flags, attributes)
	binary.NativeEndian.PutUint32(m.Data[12:], change)
	k.do(m, 0)
}

func (k *kernel) up(index int)   { k.t.Helper(); k.set(index, unix.IFF_UP, unix.IFF_UP, nil) }
func (k *kernel) down(index int) { k.t.Helper(); k.set(index, 0, unix.IFF_UP, nil) }

func (k *kernel) enslave(index, master int) {
	k.t.Helper()
	k.set(index, 0, 0, func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.IFLA_MASTER, uint32(master)) })
}

func (k *kernel) address(index int, address string) {
	k.t.Helper()
	k.do(addressMessage(k.t, unix.RTM_NEWADDR, index, netip.MustParsePrefix(address)), netlink.Create|netlink.Excl)
}

// uevent has the kernel pass on a uevent in the namespace, as container managers do.
func (k *kernel) uevent(action, subsystem, device string) {
	k.t.Helper()
	c, err := netlink.Dial(unix.NETLINK_KOBJECT_UEVENT, &netlink.Config{NetNS: k.netns})
	if err != nil {
		k.t.Fatal(err)
	}
	defer c.Close()
	path := "/devices/virtual/" + subsystem + "/" + device
	_, err = c.Send(netlink.Message{
		Header: netlink.Header{Type: unix.NLMSG_MIN_TYPE, Flags: netlink.Request},
		Data:   []byte(action + "@" + path + "\x00ACTION=" + action + "\x00DEVPATH=" + path + "\x00SUBSYSTEM=" + subsystem + "\x00"),
	})
	if err != nil {
		k.t.Fatal(err)
	}
}

// listen runs Events over the kernel for a port with these interfaces, and returns their kicks. The
// sources are open when it returns.
func (k *kernel) listen(p Port) (kicks chan struct{}) {
	k.t.Helper()
	kicks = make(chan struct{}, 1000)
	opened := make(chan struct{}, 2)
	h := &Health{Result: Result{Ports: []Port{p}}, superseded: make(chan struct{})}
	e := &Events{
		health:   func() *Health { return h },
		kick:     func() { kicks <- struct{}{} },
		interest: interest{lookup: netlinkLookup(k.netns)},
	}
	for _, s := range netlinkSources(k.netns) {
		e.sources = append(e.sources, source{s.name, func() (notices, error) {
			n, err := s.open()
			opened <- struct{}{}
			return n, err
		}})
	}
	ctx, cancel := context.WithCancel(k.t.Context())
	ended := make(chan struct{})
	go func() { e.Run(ctx); close(ended) }()
	k.t.Cleanup(func() { cancel(); <-ended })
	<-opened
	<-opened
	return kicks
}

// wantKick waits for a kick; the notices that it comes from are the first of interest.
func wantKick(t *testing.T, kicks <-chan struct{}, why string) {
	t.Helper()
	select {
	case <-kicks:
	case <-time.After(10 * time.Second):
		t.Errorf("no kick: %s", why)
	}
}

// onlyKick has an address added to the interface, which is one notice, and wants no kick but that.
func (k *kernel) onlyKick(kicks <-chan struct{}, index int, address, why string) {
	k.t.Helper()
	k.address(index, address)
	wantKick(k.t, kicks, "an address of a selected interface")
	if n := len(kicks); n > 0 {
		k.t.Errorf("%d kicks too many: %s", n, why)
	}
}

func TestKernelTellsOfTheSelectedInterface(t *testing.T) {
	for why, change := range map[string]func(k *kernel, selected, peer int){
		"link down":          func(k *kernel, selected, _ int) { k.down(selected) },
		"carrier lost":       func(k *kernel, _, peer int) { k.down(peer) },
		"interface deleted":  func(k *kernel, selected, _ int) { k.remove(selected) },
		"address added":      func(k *kernel, selected, _ int) { k.address(selected, "10.9.0.1/24") },
		"IPv6 address added": func(k *kernel, selected, _ int) { k.address(selected, "2001:db8::1/64") },
		"part of a bridge":   func(k *kernel, selected, _ int) { k.enslave(selected, k.add("bridge", "br0", "", 0)) },
		"in another namespace": func(k *kernel, selected, _ int) {
			other := newKernel(k.t)
			k.set(selected, 0, 0, func(ae *netlink.AttributeEncoder) { ae.Uint32(unix.IFLA_NET_NS_FD, uint32(other.netns)) })
		},
	} {
		t.Run(why, func(t *testing.T) {
			k := newKernel(t)
			selected := k.add("veth", "ens1f0", "switch0", 0)
			peer := k.find("switch0").index
			k.up(selected)
			k.up(peer)
			kicks := k.listen(portOn("ens1f0"))
			change(k, selected, peer)
			wantKick(t, kicks, why)
		})
	}
	t.Run("made again", func(t *testing.T) {
		k := newKernel(t)
		kicks := k.listen(portOn("ens1f0"))
		k.add("veth", "ens1f0", "switch0", 0)
		wantKick(t, kicks, "made again")
	})
}

func TestKernelTellsOfMuchThatIsOfNoConcern(t *testing.T) {
	k := newKernel(t)
	selected := k.add("veth", "ens1f0", "switch0", 0)
	k.address(k.find("switch0").index, "10.9.0.2/24")
	bridge := k.add("bridge", "cni0", "", 0)
	kicks := k.listen(portOn("ens1f0"))
	// What is known of the interface is news once.
	k.onlyKick(kicks, selected, "10.9.0.1/24", "nothing")
	for range 20 {
		pod := k.add("veth", "veth1", "eth1", 0)
		k.enslave(pod, bridge)
		k.up(pod)
		k.up(k.find("eth1").index)
		k.address(k.find("eth1").index, "10.8.0.1/24")
		k.remove(pod)
	}
	k.onlyKick(kicks, selected, "10.9.0.3/24", "pods came and went")
}

func TestKernelTellsOfPromiscuousModeAndBridges(t *testing.T) {
	k := newKernel(t)
	selected := k.add("veth", "ens1f0", "switch0", 0)
	bridge := k.add("bridge", "br0", "", 0)
	kicks := k.listen(portOn("ens1f0"))
	k.set(selected, unix.IFF_PROMISC, unix.IFF_PROMISC, nil)
	wantKick(t, kicks, "first news of the interface")
	k.set(selected, 0, unix.IFF_PROMISC, nil)
	k.set(selected, unix.IFF_PROMISC, unix.IFF_PROMISC, nil)
	k.onlyKick(kicks, selected, "10.9.0.1/24", "promiscuous mode")

	// A member of a bridge: one kick as it enters and one as it leaves, the first to come of the
	// address included.
	k.enslave(selected, bridge)
	wantKick(t, kicks, "part of a bridge")
	k.onlyKick(kicks, selected, "10.9.0.2/24", "the bridge's own messages")
	k.enslave(selected, 0)
	wantKick(t, kicks, "no more part of a bridge")
	k.onlyKick(kicks, selected, "10.9.0.3/24", "the bridge's own messages")
}

func TestKernelTellsOfWhatIsBelow(t *testing.T) {
	t.Run("macvlan", func(t *testing.T) {
		k := newKernel(t)
		lower := k.add("veth", "ens1f0", "switch0", 0)
		k.add("macvlan", "storage", "", lower)
		kicks := k.listen(portOn("storage"))
		k.up(lower)
		wantKick(t, kicks, "the interface below came up")
	})
	for _, master := range []string{"bond", "bridge"} {
		t.Run(master, func(t *testing.T) {
			k := newKernel(t)
			bond := k.add(master, "bond0", "", 0)
			member := k.add("veth", "ens1f0", "switch0", 0)
			k.enslave(member, bond)
			kicks := k.listen(portOn("bond0"))
			k.up(member)
			wantKick(t, kicks, "a member came up")
		})
	}
}

func TestKernelTellsOfRDMADevices(t *testing.T) {
	k := newKernel(t)
	selected := k.add("veth", "ens1f0", "switch0", 0)
	kicks := k.listen(portOn("ens1f0"))
	k.uevent("add", "net", "veth9")
	k.uevent("bind", "infiniband", "mlx5_0")
	k.uevent("remove", "infiniband", "mlx5_0")
	wantKick(t, kicks, "device removed")
	k.uevent("add", "infiniband_verbs", "uverbs0")
	wantKick(t, kicks, "verbs device added")
	k.onlyKick(kicks, selected, "10.9.0.1/24", "other devices and actions")
}

func TestKernelOverflow(t *testing.T) {
	k := newKernel(t)
	selected := k.add("veth", "ens1f0", "switch0", 0)
	k.up(selected)
	source := netlinkSources(k.netns)[0]
	n, err := source.open()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.(rtnetlink).SetReadBuffer(1); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		k.down(selected)
		k.up(selected)
	}
	for {
		if _, err = n.receive(); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOBUFS) {
		t.Error(err)
	}
}

// Neither listening nor looking up takes a privilege or a namespace of one's own.
func TestOwnNamespace(t *testing.T) {
	for _, s := range NewEvents(NewMonitor(&script{}, MonitorConfig{})).sources {
		n, err := s.open()
		if err != nil {
			t.Error(s.name, ": ", err)
			continue
		}
		n.Close()
		if _, err := n.receive(); err == nil {
			t.Errorf("%s: heard something after Close", s.name)
		}
	}
	if l, err := netlinkLookup(0)("lo", 0); err != nil || l.index != 1 || l.kind != "" {
		t.Errorf("%+v %v", l, err)
	}
}

func TestLookupInTheKernel(t *testing.T) {
	k := newKernel(t)
	index := k.add("veth", "ens1f0", "switch0", 0)
	lookup := netlinkLookup(k.netns)
	byName, err1 := lookup("ens1f0", 0)
	byIndex, err2 := lookup("", index)
	if err1 != nil || err2 != nil || byName != byIndex || byName.kind != "veth" || byName.lower != k.find("switch0").index {
		t.Errorf("%+v %v, %+v %v", byName, err1, byIndex, err2)
	}
	if _, err := lookup("ens9f9", 0); !errors.Is(err, unix.ENODEV) {
		t.Error(err)
	}
	if _, err := lookup("", 9999); !errors.Is(err, unix.ENODEV) {
		t.Error(err)
	}
}
