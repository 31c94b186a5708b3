package probe

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"syscall"
)

// verbsSighting is the uverbs entry of a device and whether its node can be used.
type verbsSighting struct {
	entry  string
	node   inode
	opened bool // and found usable
	finding
}

// checkVerbs finds the device's uverbs entry and wants its node to be the device that sysfs names.
// The node is opened when it is not the one that could be opened before.
func (d *device) checkVerbs(prev verbsSighting) verbsSighting {
	entry, f := d.verbsEntry(prev.entry)
	if f.reason != "" {
		return verbsSighting{finding: f}
	}
	s := verbsSighting{entry: entry}
	if s.node, s.finding = d.verbsNode(entry); s.reason != "" || !d.layers.VerbsOpen {
		return s
	}
	if prev.opened && prev.entry == s.entry && prev.node == s.node {
		s.opened = true
		return s
	}
	name := path.Join(nodeDir, entry)
	s.finding = openFinding(name, d.open(name))
	s.opened = s.reason == ""
	return s
}

// verbsEntry goes by the ibdev attribute: numbers do not follow names. The entry of the last look
// is asked first.
func (d *device) verbsEntry(last string) (string, finding) {
	if last != "" && d.attr(verbsDir, last, "ibdev").text == d.name {
		return last, finding{}
	}
	// The device below usually knows its own entry, which leaves other devices' entries alone.
	near, _ := d.readDir(d.path("device/infiniband_verbs"))
	if entry, _ := d.entryNaming(near); entry != "" {
		return entry, finding{}
	}
	entries, err := d.readDir(verbsDir)
	switch {
	case isAbsent(err):
		return "", findingf(VerbsMissing, "/%s does not exist", verbsDir)
	case err != nil:
		return "", unreadable("/"+verbsDir, err)
	}
	return d.entryNaming(entries)
}

func (d *device) entryNaming(entries []string) (string, finding) {
	result := findingf(VerbsMissing, "no uverbs entry names %s", d.name)
	for _, entry := range entries {
		if !strings.HasPrefix(entry, "uverbs") {
			continue // abi_version lies there too
		}
		ibdev := d.attr(verbsDir, entry, "ibdev")
		if ibdev.text == d.name {
			return entry, finding{}
		}
		if ibdev.err != nil && !isAbsent(ibdev.err) {
			result = unreadable(entry+"/ibdev", ibdev.err)
		}
	}
	return "", result
}

func (d *device) verbsNode(entry string) (inode, finding) {
	a := d.attr(verbsDir, entry, "dev")
	major, minor, err := parseDev(a)
	if err != nil {
		return inode{}, unreadable(entry+"/dev", err)
	}
	name := path.Join(nodeDir, entry)
	node, err := d.lstat(name)
	switch {
	case isAbsent(err):
		return node, findingf(VerbsMissing, "/%s does not exist", name)
	case err != nil:
		return node, unreadable("/"+name, err)
	case !node.char:
		return node, findingf(VerbsUnusable, "/%s is not a character device", name)
	case node.major != major || node.minor != minor:
		return node, findingf(VerbsUnusable, "/%s is device %d:%d, sysfs says %d:%d", name, node.major, node.minor, major, minor)
	}
	return node, finding{}
}

// openFinding tells a device that is going away from one that this process may not touch.
func openFinding(name string, err error) finding {
	if err == nil {
		return finding{}
	}
	reason := AttributeUnreadable
	switch {
	case errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EACCES):
		reason = VerbsNotPermitted
	case errors.Is(err, syscall.ENXIO), errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENODEV):
		reason = VerbsUnusable
	case isAbsent(err):
		reason = VerbsMissing
	}
	return findingf(reason, "open /%s: %s", name, errText(err))
}

// parseDev reads "231:192".
func parseDev(a attr) (major, minor uint32, err error) {
	if a.err != nil {
		return 0, 0, a.err
	}
	x, y, _ := strings.Cut(a.text, ":")
	m, err1 := strconv.ParseUint(x, 10, 32)
	n, err2 := strconv.ParseUint(y, 10, 32)
	if err1 != nil || err2 != nil {
		return 0, 0, fmt.Errorf("%q is not major:minor", tidy(a.text))
	}
	return uint32(m), uint32(n), nil
}
