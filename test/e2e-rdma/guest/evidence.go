package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// evidence is what the kernel says of a device, or that it says nothing.
func evidence(w *wire) []string {
	var lines []string
	device, netdev := "/sys/class/infiniband/"+w.device, "/sys/class/net/"+w.near
	for _, pattern := range []string{
		device + "/ports/1/state",
		device + "/ports/1/phys_state",
		device + "/ports/1/link_layer",
		device + "/ports/1/gids/[0-3]",
		device + "/ports/1/gid_attrs/types/[0-3]",
		device + "/ports/1/gid_attrs/ndevs/[0-3]",
		device + "/parent",
		netdev + "/flags",
		netdev + "/carrier",
		netdev + "/operstate",
		"/sys/class/infiniband_verbs/uverbs*/ibdev",
		"/sys/class/infiniband_verbs/uverbs*/dev",
	} {
		names, _ := filepath.Glob(pattern) // a pattern of our own
		if len(names) == 0 {
			lines = append(lines, pattern+": none")
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				lines = append(lines, err.Error())
				continue
			}
			lines = append(lines, fmt.Sprintf("%s: %s", name, strings.TrimSpace(string(text))))
		}
	}
	nodes, _ := filepath.Glob("/dev/infiniband/uverbs*")
	return append(lines, fmt.Sprintf("/dev/infiniband/uverbs*: %s", strings.Join(nodes, " ")))
}
