package proxy

// Stats is what a Server has counted since its start, and what it knows now.
type Stats struct {
	Refusals map[Refusal]uint64
	// Volumes by what is known of them; one volume can be in several states, by its paths.
	InFlight, Done, Unfinished, Inherited int
}

// Stats returns a copy of the counts.
func (s *Server) Stats() Stats {
	st := s.volumes.stats(s.replies.driverName())
	st.Refusals = s.gate.refusals.counts()
	return st
}

func (vs *volumes) stats(driver string) Stats {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	st := Stats{InFlight: vs.calls, Inherited: vs.inherited.count(driver)}
	for _, v := range vs.known {
		done, unfinished := false, false
		for _, records := range v.both() {
			for _, r := range records {
				done = done || r.done
				unfinished = unfinished || r.unfinished
			}
		}
		if done {
			st.Done++
		}
		if unfinished {
			st.Unfinished++
		}
	}
	return st
}
