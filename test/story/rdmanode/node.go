// Package rdmanode makes a node with RDMA hardware out of plain files: a tree for --host-root, laid
// out as sysfs lays it out, with the links from the classes into /sys/devices. Its two devices are
//
//	mlx5_0  a RoCE port, interface ens1f0np0
//	mlx5_1  an InfiniBand port, interface ibs2
//
// and each has a cable that can be pulled and plugged in again.
package rdmanode

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The devices of every Node.
const (
	RoCE       = "mlx5_0"
	InfiniBand = "mlx5_1"
)

// verbsMajor is the major number of the kernel's uverbs devices, verbsMinor the first minor.
const (
	verbsMajor = 231
	verbsMinor = 192
)

// card is a device with one port.
type card struct {
	name, pci, netdev string
	ib                bool
	// uverbs is the number of the verbs device.
	uverbs int
	// guid is the port's in the notation of sysfs, mac the interface's address.
	guid, mac string
	// gids are the table from index 0 on.
	gids []gid
	// up and down are what changes with the cable.
	up, down link
}

type gid struct{ value, kind string }

type link struct{ state, physState, carrier, operstate string }

func cards() []card {
	return []card{
		{
			name: RoCE, pci: "0000:17:00.0", netdev: "ens1f0np0", uverbs: 0,
			guid: "0800:27ff:fe00:0a01", mac: "08:00:27:00:0a:01",
			gids: []gid{
				{"fe80:0000:0000:0000:0a00:27ff:fe00:0a01", "IB/RoCE v1"},
				{"fe80:0000:0000:0000:0a00:27ff:fe00:0a01", "RoCE v2"},
				{"0000:0000:0000:0000:0000:ffff:c000:020a", "IB/RoCE v1"},
				{"0000:0000:0000:0000:0000:ffff:c000:020a", "RoCE v2"},
			},
			up:   link{"4: ACTIVE", "5: LinkUp", "1", "up"},
			down: link{"1: DOWN", "3: Disabled", "0", "down"},
		},
		{
			name: InfiniBand, pci: "0000:65:00.0", netdev: "ibs2", uverbs: 1, ib: true,
			guid: "0800:2703:0000:0b01",
			mac:  "00:00:10:29:fe:c0:00:00:00:00:00:01:08:00:27:03:00:00:0b:01",
			gids: []gid{{"fec0:0000:0000:0001:0800:2703:0000:0b01", "IB/RoCE v1"}},
			up:   link{"4: ACTIVE", "5: LinkUp", "1", "up"},
			down: link{"1: DOWN", "2: Polling", "0", "down"},
		},
	}
}

// Node is a simulated RDMA node. Its methods are not safe for concurrent use; whoever reads the
// tree meanwhile sees every file either before or after a change.
type Node struct {
	root  string
	cards map[string]card
	verbs bool
}

// New makes the tree at root with both cables in.
func New(root string) (*Node, error) {
	n := &Node{root: root, cards: make(map[string]card), verbs: true}
	for _, c := range cards() {
		n.cards[c.name] = c
		if err := n.make(c); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// Root is the value for --host-root.
func (n *Node) Root() string { return n.root }

// Verbs says whether the tree has verbs devices. Making them takes a privilege (CAP_MKNOD); without
// it the layers port, gid and netdev are what the tree can show.
func (n *Node) Verbs() bool { return n.verbs }

// Pull pulls the cable of the device's port.
func (n *Node) Pull(device string) error { return n.set(device, func(c card) link { return c.down }) }

// Plug plugs it in again.
func (n *Node) Plug(device string) error { return n.set(device, func(c card) link { return c.up }) }

func (n *Node) set(device string, pick func(card) link) error {
	c, err := n.card(device)
	if err != nil {
		return err
	}
	l := pick(c)
	for _, f := range []struct{ path, content string }{
		{c.port("state"), l.state},
		{c.port("phys_state"), l.physState},
		{c.net("carrier"), l.carrier},
		{c.net("operstate"), l.operstate},
	} {
		if err := n.write(f.path, f.content); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) card(device string) (card, error) {
	c, ok := n.cards[device]
	if !ok {
		return c, fmt.Errorf("no device %s on the simulated node", device)
	}
	return c, nil
}

// dir is the device's directory in /sys/devices.
func (c card) dir() string { return filepath.Join("sys/devices/pci0000:00", c.pci) }

func (c card) hca(name string) string { return filepath.Join(c.dir(), "infiniband", c.name, name) }

func (c card) port(name string) string { return c.hca(filepath.Join("ports/1", name)) }

func (c card) net(name string) string { return filepath.Join(c.dir(), "net", c.netdev, name) }

// entries are the links into dir from elsewhere in /sys.
func (c card) entries() map[string]string {
	return map[string]string{
		filepath.Join("sys/class/infiniband", c.name):               c.hca(""),
		filepath.Join("sys/class/infiniband_verbs", c.uverbsName()): c.verbs(""),
		filepath.Join("sys/class/net", c.netdev):                    c.net(""),
		filepath.Join("sys/bus/pci/devices", c.pci):                 c.dir(),
	}
}

func (c card) verbs(name string) string {
	return filepath.Join(c.dir(), "infiniband_verbs", c.uverbsName(), name)
}

func (c card) device() string { return filepath.Join("dev/infiniband", c.uverbsName()) }

func (c card) uverbsName() string { return fmt.Sprintf("uverbs%d", c.uverbs) }

func (n *Node) make(c card) error {
	layer, netType, rate, lid, smLid := "Ethernet", "1", "100 Gb/sec (4X EDR)", "0x0", "0x0"
	if c.ib {
		layer, netType, rate, lid, smLid = "InfiniBand", "32", "400 Gb/sec (4X NDR)", "0x2a", "0x1"
	}
	files := map[string]string{
		c.hca("node_type"):               "1: CA",
		c.hca("node_guid"):               c.guid,
		c.hca("sys_image_guid"):          c.guid,
		c.hca("fw_ver"):                  "28.43.1014",
		c.hca("hca_type"):                "MT4129",
		c.port("link_layer"):             layer,
		c.port("rate"):                   rate,
		c.port("lid"):                    lid,
		c.port("sm_lid"):                 smLid,
		c.net("address"):                 c.mac,
		c.net("type"):                    netType,
		c.net("dev_port"):                "0",
		c.net("dev_id"):                  "0x0",
		filepath.Join(c.dir(), "uevent"): "DRIVER=mlx5_core\nPCI_SLOT_NAME=" + c.pci,
		c.verbs("dev"):                   fmt.Sprintf("%d:%d", verbsMajor, verbsMinor+c.uverbs),
		c.verbs("ibdev"):                 c.name,
		c.verbs("abi_version"):           "1",
	}
	for i, g := range c.gids {
		files[c.port(fmt.Sprintf("gids/%d", i))] = g.value
		files[c.port(fmt.Sprintf("gid_attrs/types/%d", i))] = g.kind
		if !c.ib {
			files[c.port(fmt.Sprintf("gid_attrs/ndevs/%d", i))] = c.netdev
		}
	}
	for path, content := range files {
		if err := n.write(path, content); err != nil {
			return err
		}
	}
	if err := n.Plug(c.name); err != nil {
		return err
	}
	links := c.entries()
	maps.Copy(links, map[string]string{
		c.hca("device"):                     c.dir(),
		c.net("device"):                     c.dir(),
		c.verbs("device"):                   c.dir(),
		filepath.Join(c.dir(), "driver"):    "sys/bus/pci/drivers/mlx5_core",
		filepath.Join(c.dir(), "subsystem"): "sys/bus/pci",
	})
	if err := os.MkdirAll(filepath.Join(n.root, "sys/bus/pci/drivers/mlx5_core"), 0o755); err != nil {
		return err
	}
	for path, target := range links {
		if err := n.link(path, target); err != nil {
			return err
		}
	}
	return n.mknod(c)
}

// write replaces the file in one step.
func (n *Node) write(path, content string) error {
	path = filepath.Join(n.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	tmp := filepath.Join(n.root, ".new")
	if err := os.WriteFile(tmp, []byte(content+"\n"), 0o444); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// link makes a relative link, as sysfs does, so that the tree may lie anywhere.
func (n *Node) link(path, target string) error {
	path = filepath.Join(n.root, path)
	rel, err := filepath.Rel(filepath.Dir(path), filepath.Join(n.root, target))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.Symlink(rel, path)
}

// mknod makes the verbs device, which nothing stands behind.
func (n *Node) mknod(c card) error {
	path := filepath.Join(n.root, c.device())
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(verbsMajor, uint32(verbsMinor+c.uverbs))))
	if errors.Is(err, unix.EPERM) {
		n.verbs = false
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "mknod", Path: path, Err: err}
	}
	return nil
}
