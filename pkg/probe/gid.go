package probe

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxGIDs is more than any known table holds.
const maxGIDs = 1024

// gid is an address of a port.
type gid [16]byte

func parseGID(text string) (gid, error) {
	var g gid
	digits, err := hex.DecodeString(strings.ReplaceAll(text, ":", ""))
	copy(g[:], digits)
	if err != nil || !strings.EqualFold(g.String(), text) {
		return gid{}, fmt.Errorf("%q is not a GID", tidy(text))
	}
	return g, nil
}

// null says that the interface id, the low half, was never set: nothing can be reached by it.
func (g gid) null() bool { return [8]byte(g[8:]) == [8]byte{} }

func (g gid) zero() bool { return g == gid{} }

// prefix is the upper half: an InfiniBand fabric's subnet prefix.
func (g gid) prefix() string { return hex.EncodeToString(g[:8]) }

// guid is the low half as the kernel writes it: an InfiniBand port's own GUID.
func (g gid) guid() string { return g.String()[20:] }

// String is the kernel's spelling.
func (g gid) String() string {
	groups := make([]string, 0, 8)
	for i := 0; i < len(g); i += 2 {
		groups = append(groups, hex.EncodeToString(g[i:i+2]))
	}
	return strings.Join(groups, ":")
}

// slot is one entry of a port's GID table, or why it could not be read.
type slot struct {
	index int
	gid   gid
	err   error
}

// slot reads one entry.
func (p port) slot(index int) slot {
	s := slot{index: index}
	a := p.portAttr("gids", strconv.Itoa(index))
	if s.err = a.err; s.err == nil {
		s.gid, s.err = parseGID(a.text)
	}
	return s
}

// slots yields the table. Empty slots read as zeros, so ENOENT is the end of it, except in the
// first slot, which every table has.
func (p port) slots(yield func(slot) bool) {
	for i := range maxGIDs {
		s := p.slot(i)
		if i > 0 && isAbsent(s.err) || !yield(s) || isAbsent(s.err) {
			return
		}
	}
}

func (p port) subnetPrefix() string {
	s := p.slot(0)
	if s.err != nil || s.gid.zero() {
		return ""
	}
	return s.gid.prefix()
}

const roceV2 = "RoCE v2"

// Why the GID in a slot is no use.
var (
	errNull      = errors.New("null")
	errNoType    = errors.New("without type")
	errWrongType = errors.New("not RoCE v2")
)

// usable returns nil if the port can be reached by the GID in a slot.
func (p port) usable(link link, s slot) error {
	if s.err != nil {
		return s.err
	}
	if s.gid.null() {
		return errNull
	}
	if !link.roce() {
		return nil
	}
	kind := p.portAttr("gid_attrs/types", strconv.Itoa(s.index))
	switch {
	case isEmptySlot(kind.err):
		return errNoType
	case kind.err != nil:
		return kind.err
	case kind.text != roceV2:
		return errWrongType
	}
	return nil
}

// gidSighting is a usable GID and its index, or what is wrong with the table.
type gidSighting struct {
	index int
	text  string
	finding
}

// checkGID looks for a usable GID, first where one was the last time: tables can be long and
// sparse.
func (p port) checkGID(link link, hint int) gidSighting {
	if link.err != nil {
		return gidSighting{index: -1, finding: unreadable("link_layer", link.err)}
	}
	if hint >= 0 {
		if s := p.slot(hint); p.usable(link, s) == nil {
			return gidSighting{index: hint, text: s.gid.String()}
		}
	}
	var t gidTally
	for s := range p.slots {
		err := p.usable(link, s)
		if err == nil {
			return gidSighting{index: s.index, text: s.gid.String()}
		}
		t.add(s, err)
	}
	found := gidSighting{index: -1, text: t.shown}
	if link.layer != IWARP { // whose GIDs are MAC addresses
		found.finding = t.explain(link)
	}
	return found
}

// gidTally is what a table without a usable GID held.
type gidTally struct {
	slots     int
	shown     string // the first GID that is not zero
	noType    string // the first GID that has none
	wrongType string
	failed    finding
}

func (t *gidTally) add(s slot, err error) {
	t.slots++
	if t.shown == "" && !s.gid.zero() {
		t.shown = s.gid.String()
	}
	switch {
	case errors.Is(err, errNull):
	case errors.Is(err, errNoType):
		t.noType = cmp.Or(t.noType, s.gid.String())
	case errors.Is(err, errWrongType):
		if t.wrongType == "" {
			t.wrongType = s.gid.String()
		}
	case t.failed.reason == "":
		t.failed = unreadable(fmt.Sprintf("GID %d", s.index), err)
	}
}

func (t *gidTally) explain(link link) finding {
	switch {
	case t.failed.reason != "":
		return t.failed
	case t.wrongType != "":
		return findingf(RoCEv2GIDMissing, "%s and none of %d entries is RoCE v2", t.wrongType, t.slots)
	case t.noType != "":
		return findingf(GIDMissing, "%s has no type, and none of %d entries is RoCE v2", t.noType, t.slots)
	case t.shown != "":
		return findingf(GIDMissing, "%s has no interface id, nor has any of %d entries", t.shown, t.slots)
	case link.roce() && link.active:
		return findingf(NamespaceMismatch, "port ACTIVE, all %d GIDs zero", t.slots)
	}
	return findingf(GIDMissing, "all %d GIDs zero", t.slots)
}
