package probe

import "strings"

// parseUevent reads what the kernel sends when a device changes: "add@/devices/…", then KEY=value
// for each property, each ended by a NUL. Messages of udev, which look otherwise, are left out.
func parseUevent(data []byte) (n deviceNotice, ok bool) {
	summary, properties, _ := strings.Cut(string(data), "\x00")
	if action, path, found := strings.Cut(summary, "@"); !found || action == "" || !strings.HasPrefix(path, "/") {
		return n, false
	}
	for property := range strings.SplitSeq(properties, "\x00") {
		switch key, value, _ := strings.Cut(property, "="); key {
		case "ACTION":
			n.action = value
		case "SUBSYSTEM":
			n.subsystem = value
		case "DEVPATH":
			n.device = value[strings.LastIndexByte(value, '/')+1:]
		}
	}
	return n, n.action != "" && n.subsystem != ""
}
