package main

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// wire is a soft-RoCE device on one end of a virtual cable. Pulling the other end takes its carrier.
type wire struct {
	device string // as in "rdma0"
	near   string // the interface of the device
	far    string
}

// newWire makes a wire that works.
func newWire(number int) (*wire, error) {
	w := &wire{
		device: fmt.Sprintf("rdma%d", number),
		near:   fmt.Sprintf("near%d", number),
		far:    fmt.Sprintf("far%d", number),
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = w.near
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: w.far}); err != nil {
		return nil, fmt.Errorf("add interfaces %s and %s: %w", w.near, w.far, err)
	}
	if err := errors.Join(setUp(w.near), setUp(w.far)); err != nil {
		return nil, err
	}
	return w, w.addDevice()
}

func (w *wire) addDevice() error {
	if err := netlink.RdmaLinkAdd(w.device, "rxe", w.near); err != nil {
		return fmt.Errorf("add RDMA device %s: %w", w.device, err)
	}
	return nil
}

func (w *wire) deleteDevice() error {
	if err := netlink.RdmaLinkDel(w.device); err != nil {
		return fmt.Errorf("delete RDMA device %s: %w", w.device, err)
	}
	return nil
}

func setUp(name string) error { return withLink(name, "set up", netlink.LinkSetUp) }

func setDown(name string) error { return withLink(name, "set down", netlink.LinkSetDown) }

func withLink(name, what string, op func(netlink.Link) error) error {
	link, err := netlink.LinkByName(name)
	if err == nil {
		err = op(link)
	}
	if err != nil {
		return fmt.Errorf("%s interface %s: %w", what, name, err)
	}
	return nil
}
