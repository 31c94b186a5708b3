package proxy

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// maxPaths bounds what is remembered. A node has a few hundred volumes; only a caller that makes
// up volume ids gets here.
const maxPaths = 65536

var errTooManyVolumes = errors.New("more than 65536 volume paths are known, so this one cannot be remembered")

// volumes is what this gate knows of the volumes on the node, in memory only: what went through
// it, and what kubelet's directories said when it started. Safe for concurrent use.
type volumes struct {
	mu    sync.Mutex
	known map[string]*volume
	paths int // paths in all known volumes
	calls int // Stage, Publish, Unstage and Unpublish that are with the driver

	inherited inherited
}

// volume holds one record per path, apart for Stage and Publish.
type volume struct {
	staged, published map[string]*record
}

// record is what is known of one path. A record in which nothing is set is forgotten.
type record struct {
	inFlight   int
	done       bool // a call succeeded, and nothing has undone it
	unfinished bool // the newest call ended without a final answer
}

// both are the records of either kind.
func (v *volume) both() [2]map[string]*record { return [2]map[string]*record{v.staged, v.published} }

func newVolumes() *volumes { return &volumes{known: map[string]*volume{}} }

func (v *volume) records(published bool) map[string]*record {
	if published {
		return v.published
	}
	return v.staged
}

// inherit takes a new inherited set and forgets what is done. What is not finished stays so.
func (vs *volumes) inherit(in inherited) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.inherited = in
	for id, v := range vs.known {
		for _, records := range v.both() {
			for _, r := range records {
				r.done = false
			}
		}
		vs.tidy(id)
	}
}

// begin notes that a Stage or Publish goes to the driver. The function it returns takes the
// driver's answer.
func (vs *volumes) begin(r *request) (end func(error), err error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	v := vs.known[r.volume]
	if v == nil {
		v = &volume{staged: map[string]*record{}, published: map[string]*record{}}
	}
	records := v.records(r.published())
	rec := records[r.path]
	if rec == nil {
		if vs.paths >= maxPaths {
			return nil, errTooManyVolumes
		}
		rec = &record{}
		records[r.path] = rec
		vs.known[r.volume] = v
		vs.paths++
	}
	rec.inFlight++
	vs.calls++
	return func(answer error) { vs.end(r, rec, answer) }, nil
}

func (vs *volumes) end(r *request, rec *record, answer error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	rec.inFlight--
	vs.calls--
	rec.unfinished = !final(answer)
	if answer == nil {
		rec.done = true
	}
	vs.tidy(r.volume)
}

// beginUndo notes that an Unstage or Unpublish goes to the driver.
func (vs *volumes) beginUndo(r *request) (end func(error)) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.calls++
	return func(answer error) { vs.endUndo(r, answer) }
}

func (vs *volumes) endUndo(r *request, answer error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.calls--
	if answer != nil {
		return
	}
	v := vs.known[r.volume]
	if r.published() {
		vs.inherited.unpublished(r.volume, r.path)
		if v != nil {
			v.published[r.path].forget()
		}
	} else {
		vs.inherited.unstaged(r.volume, r.path)
		if v != nil {
			for _, records := range v.both() {
				for _, r := range records {
					r.forget()
				}
			}
		}
	}
	vs.tidy(r.volume)
}

// forget leaves calls in flight: they may still make a mount.
func (r *record) forget() {
	if r != nil {
		r.done, r.unfinished = false, false
	}
}

// tidy drops records in which nothing is set.
func (vs *volumes) tidy(id string) {
	v := vs.known[id]
	if v == nil {
		return
	}
	for _, records := range v.both() {
		for path, r := range records {
			if *r == (record{}) {
				delete(records, path)
				vs.paths--
			}
		}
	}
	if len(v.staged)+len(v.published) == 0 {
		delete(vs.known, id)
	}
}

// knowledge is what is known of one request's path before it is decided.
type knowledge struct {
	record
	// inherited: kubelet had begun with this volume before this gate started.
	inherited bool
	// places are the paths at or below which a mount shows that the volume is live.
	places []string
}

func (vs *volumes) about(r *request, driver string) knowledge {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	k := knowledge{inherited: vs.inherited.has(r, driver), places: []string{r.path}}
	v := vs.known[r.volume]
	if v != nil {
		if rec := v.records(r.published())[r.path]; rec != nil {
			k.record = *rec
		}
	}
	if r.published() {
		return k
	}
	// A volume whose driver only logs in while staging, or mounts elsewhere, is live as long as
	// one of its targets is.
	if v != nil {
		for path := range v.published {
			k.places = append(k.places, path)
		}
	}
	k.places = append(k.places, vs.inherited.targets(r.volume, driver)...)
	return k
}

// inFlight counts the calls that are with the driver and concern a volume.
func (vs *volumes) inFlight() int {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.calls
}

// final says whether kubelet takes an answer for the last word on whether there is a mount
// (isFinalError in pkg/volume/csi/csi_client.go of k8s.io/kubernetes).
func final(answer error) bool {
	if errors.Is(answer, context.Canceled) || errors.Is(answer, context.DeadlineExceeded) {
		return false
	}
	switch status.Code(answer) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	default:
		return true
	}
}
