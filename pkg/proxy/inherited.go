package proxy

// inherited is what kubelet had begun before this gate started. Its calls went to an earlier gate,
// so how they ended is not known. Entries leave when the driver has undone them. Not safe for
// concurrent use: volumes guards it.
type inherited struct {
	// everything: kubelet's directories could not be read, so any volume may be inherited.
	everything bool
	byVolume   map[string][]*inheritance
	// unreadable holds the paths of volumes whose files do not tell their names.
	unreadable map[string]struct{}
}

// inheritance is one driver's volume of that id.
type inheritance struct {
	driver string
	// targets are the paths that kubelet had begun to publish, less those unpublished since.
	targets map[string]struct{}
	// untouched: no Unpublish has succeeded, so any path may be a target that no file told of.
	untouched bool
}

func newInherited(attempts []attempt, err error) inherited {
	in := inherited{everything: err != nil, byVolume: map[string][]*inheritance{}, unreadable: map[string]struct{}{}}
	for _, a := range attempts {
		if a.unreadable {
			for _, path := range a.paths {
				in.unreadable[path] = struct{}{}
			}
			continue
		}
		i := in.of(a.volume, a.driver)
		if i == nil {
			i = &inheritance{driver: a.driver, targets: map[string]struct{}{}, untouched: true}
			in.byVolume[a.volume] = append(in.byVolume[a.volume], i)
		}
		if a.published {
			i.targets[a.paths[0]] = struct{}{}
		}
		if a.block {
			for _, path := range a.paths[1:] {
				i.targets[path] = struct{}{}
			}
		}
	}
	return in
}

// of finds the volume of a driver; as long as the driver's name is not known, of any.
func (in *inherited) of(volume, driver string) *inheritance {
	for _, i := range in.byVolume[volume] {
		if driver == "" || i.driver == driver {
			return i
		}
	}
	return nil
}

func (in *inherited) has(r *request, driver string) bool {
	if in.everything {
		return true
	}
	if _, ok := in.unreadable[r.path]; ok {
		return true
	}
	i := in.of(r.volume, driver)
	if i == nil || !r.published() {
		return i != nil
	}
	_, begun := i.targets[r.path]
	return begun || i.untouched
}

// count counts a driver's volumes, and those of which nobody knows whose they are.
func (in *inherited) count(driver string) int {
	n := len(in.unreadable)
	for volume := range in.byVolume {
		if in.of(volume, driver) != nil {
			n++
		}
	}
	return n
}

func (in *inherited) targets(volume, driver string) []string {
	var paths []string
	if i := in.of(volume, driver); i != nil {
		for path := range i.targets {
			paths = append(paths, path)
		}
	}
	return paths
}

func (in *inherited) unpublished(volume, path string) {
	delete(in.unreadable, path)
	for _, i := range in.byVolume[volume] {
		delete(i.targets, path)
		i.untouched = false
	}
}

func (in *inherited) unstaged(volume, path string) {
	delete(in.unreadable, path)
	delete(in.byVolume, volume)
}
