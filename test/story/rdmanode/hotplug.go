package rdmanode

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// Remove takes the device's card off the node: nothing of it is left, as after its driver was unloaded
// or the card has fallen off its bus.
func (n *Node) Remove(device string) error {
	c, err := n.card(device)
	if err != nil {
		return err
	}
	for _, path := range append(slices.Sorted(maps.Keys(c.entries())), c.device(), c.dir()) {
		if err := os.RemoveAll(filepath.Join(n.root, path)); err != nil {
			return err
		}
	}
	return nil
}

// Insert brings back, as new and with its cable in, a card that Remove took.
func (n *Node) Insert(device string) error {
	c, err := n.card(device)
	if err != nil {
		return err
	}
	return n.make(c)
}

// SetLinkLayer has the device's port speak InfiniBand or Ethernet, in sysfs's own words, as a tool of
// the card's maker does. All else stays as it was, so the port is not in order.
func (n *Node) SetLinkLayer(device, layer string) error {
	c, err := n.card(device)
	if err != nil {
		return err
	}
	return n.write(c.port("link_layer"), layer)
}
