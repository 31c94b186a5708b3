package probe

import (
	"encoding/binary"
	"errors"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// netlinkSources tell of links and addresses, and of devices. netns is a descriptor of the network
// namespace to listen in; 0 is that of the process. Listening takes no privilege.
func netlinkSources(netns int) []source {
	return []source{
		{"links and addresses", func() (notices, error) { return openRtnetlink(netns) }},
		{"devices", func() (notices, error) { return openUevents(netns) }},
	}
}

// rtnetlink tells of links and addresses.
type rtnetlink struct{ *netlink.Conn }

func openRtnetlink(netns int) (notices, error) {
	const groups = unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR
	c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{Groups: groups, NetNS: netns})
	if err != nil {
		return nil, err
	}
	return rtnetlink{c}, nil
}

func (r rtnetlink) receive() ([]notice, error) {
	messages, err := r.Receive()
	if err != nil {
		return nil, err
	}
	var some []notice
	for _, m := range messages {
		switch m.Header.Type {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if n, ok := parseLink(m); ok {
				some = append(some, n)
			}
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			if n, ok := parseAddress(m); ok {
				some = append(some, n)
			}
		}
	}
	return some, nil
}

// parseLink reads an ifinfomsg and its attributes. Bridges send messages of a family of their own
// about the interfaces in them, whose RTM_DELLINK means that one has left the bridge.
func parseLink(m netlink.Message) (n linkNotice, ok bool) {
	const states = unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP
	if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
		return n, false
	}
	n.gone = m.Header.Type == unix.RTM_DELLINK
	n.index = int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
	n.flags = binary.NativeEndian.Uint32(m.Data[8:]) & states
	ad, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return n, false
	}
	lowerElsewhere := false
	for ad.Next() {
		switch ad.Type() {
		case unix.IFLA_IFNAME:
			n.name = ad.String()
		case unix.IFLA_ADDRESS:
			n.address = string(ad.Bytes())
		case unix.IFLA_LINK:
			n.lower = int(ad.Int32())
		case unix.IFLA_LINK_NETNSID:
			lowerElsewhere = true
		case unix.IFLA_MASTER:
			n.master = int(ad.Int32())
		case unix.IFLA_LINKINFO:
			ad.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() == unix.IFLA_INFO_KIND {
						n.kind = info.String()
					}
				}
				return nil
			})
		}
	}
	if lowerElsewhere {
		n.lower = 0
	}
	return n, ad.Err() == nil && n.index > 0
}

// parseAddress reads an ifaddrmsg and its attributes.
func parseAddress(m netlink.Message) (n addressNotice, ok bool) {
	if len(m.Data) < unix.SizeofIfAddrmsg {
		return n, false
	}
	n.gone = m.Header.Type == unix.RTM_DELADDR
	n.flags = uint32(m.Data[2])
	n.index = int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
	ad, err := netlink.NewAttributeDecoder(m.Data[unix.SizeofIfAddrmsg:])
	if err != nil {
		return n, false
	}
	var local, address string
	for ad.Next() {
		switch ad.Type() {
		case unix.IFA_LOCAL:
			local = string(ad.Bytes())
		case unix.IFA_ADDRESS:
			address = string(ad.Bytes()) // of the peer, if there is a local one
		case unix.IFA_FLAGS:
			n.flags = ad.Uint32()
		}
	}
	n.address = local + address
	return n, ad.Err() == nil && n.index > 0
}

// netlinkLookup returns a function that asks the kernel for one interface.
func netlinkLookup(netns int) func(name string, index int) (linkNotice, error) {
	return func(name string, index int) (linkNotice, error) {
		c, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{NetNS: netns})
		if err != nil {
			return linkNotice{}, err
		}
		defer c.Close()
		ae := netlink.NewAttributeEncoder()
		if name != "" {
			ae.String(unix.IFLA_IFNAME, name)
		}
		attributes, err := ae.Encode()
		if err != nil {
			return linkNotice{}, err
		}
		data := make([]byte, unix.SizeofIfInfomsg)
		binary.NativeEndian.PutUint32(data[4:], uint32(index))
		replies, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request},
			Data:   append(data, attributes...),
		})
		if err != nil {
			return linkNotice{}, err
		}
		for _, m := range replies {
			if n, ok := parseLink(m); ok {
				return n, nil
			}
		}
		return linkNotice{}, errors.New("no link in the kernel's reply")
	}
}

// uevents tells of devices. What it receives are no netlink messages.
type uevents struct {
	*netlink.Conn
	raw    syscall.RawConn
	buffer []byte
}

func openUevents(netns int) (notices, error) {
	const fromKernel = 1 // the group; udev sends its own to another
	c, err := netlink.Dial(unix.NETLINK_KOBJECT_UEVENT, &netlink.Config{Groups: fromKernel, NetNS: netns})
	if err != nil {
		return nil, err
	}
	raw, err := c.SyscallConn()
	if err != nil {
		c.Close()
		return nil, err
	}
	const size = 4096 // the kernel's are 2048 bytes and a path at most
	return &uevents{c, raw, make([]byte, 2*size)}, nil
}

func (u *uevents) receive() ([]notice, error) {
	var size int
	var failed error
	err := u.raw.Read(func(fd uintptr) bool {
		size, _, failed = unix.Recvfrom(int(fd), u.buffer, unix.MSG_DONTWAIT)
		return !errors.Is(failed, unix.EAGAIN)
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	if n, ok := parseUevent(u.buffer[:size]); ok {
		return []notice{n}, nil
	}
	return nil, nil
}
