//go:build !linux

package probe

import "errors"

func netlinkSources(int) []source { return nil }

func netlinkLookup(int) func(string, int) (linkNotice, error) {
	return func(string, int) (linkNotice, error) { return linkNotice{}, errors.ErrUnsupported }
}
