package probe

// causes gives each trouble the detail that it had when it began, so that what is said about it
// stays the same word for word while it lasts. Kubelet folds equal events into one.
type causes map[troubleKey]string

type troubleKey struct {
	subject string
	reason  Reason
}

// steady takes in the troubles of a probe and returns them with their first details.
func (c *causes) steady(troubles []Trouble) []Trouble {
	next := make(causes, len(troubles))
	steady := make([]Trouble, 0, len(troubles))
	for _, t := range troubles {
		key := troubleKey{t.Subject, t.Reason}
		// The exception has no raw values, and its detail is about the hardware too.
		if detail, lasting := (*c)[key]; lasting && t.Reason != ResourceNotAdvertised {
			t.Detail = detail
		}
		next[key] = t.Detail
		steady = append(steady, t)
	}
	*c = next
	return steady
}
