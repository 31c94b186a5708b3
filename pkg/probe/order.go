package probe

import (
	"cmp"
	"slices"
	"strings"
)

// sortNatural puts mlx5_2 before mlx5_10.
func sortNatural(names []string) { slices.SortFunc(names, compareNatural) }

// compareNatural compares runs of digits by their value and everything else by its bytes.
func compareNatural(a, b string) int {
	x, y := a, b
	for x != "" && y != "" {
		var p, q string
		p, x = cutRun(x)
		q, y = cutRun(y)
		if c := compareRun(p, q); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(a, b))
}

func compareRun(p, q string) int {
	if !isDigit(p[0]) || !isDigit(q[0]) {
		return strings.Compare(p, q)
	}
	p, q = strings.TrimLeft(p, "0"), strings.TrimLeft(q, "0")
	return cmp.Or(cmp.Compare(len(p), len(q)), strings.Compare(p, q))
}

// cutRun cuts off the leading run of digits or of other bytes; s is not empty.
func cutRun(s string) (run, rest string) {
	i := 1
	for i < len(s) && isDigit(s[i]) == isDigit(s[0]) {
		i++
	}
	return s[:i], s[i:]
}

func isDigit(b byte) bool { return '0' <= b && b <= '9' }
