package monitoring

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// labelSet is a set of names of labels.
type labelSet map[string]bool

func (s labelSet) add(names ...string) {
	for _, n := range names {
		s[n] = true
	}
}

// and is a new set with the names as well.
func (s labelSet) and(names ...string) labelSet {
	more := maps.Clone(s)
	more.add(names...)
	return more
}

// without is a new set less the names.
func (s labelSet) without(names ...string) labelSet {
	less := maps.Clone(s)
	for _, n := range names {
		delete(less, n)
	}
	return less
}

func (s labelSet) names() []string { return slices.Sorted(maps.Keys(s)) }

// checker holds queries against the metrics that there are.
type checker struct {
	exported exported
	// target are the labels that Prometheus gives each series of a target.
	target labelSet
}

// query parses the query and returns the labels that its result can have. An error says which metric or label there is not.
func (c checker) query(query string) (labelSet, error) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return nil, err
	}
	return c.expr(expr)
}

func (c checker) expr(expr parser.Expr) (labelSet, error) {
	switch e := expr.(type) {
	case *parser.NumberLiteral, *parser.StringLiteral:
		return labelSet{}, nil
	case *parser.ParenExpr:
		return c.expr(e.Expr)
	case *parser.UnaryExpr:
		return c.expr(e.Expr)
	case *parser.SubqueryExpr:
		return c.expr(e.Expr)
	case *parser.MatrixSelector:
		return c.expr(e.VectorSelector)
	case *parser.VectorSelector:
		return c.selector(e)
	case *parser.Call:
		return c.call(e)
	case *parser.AggregateExpr:
		return c.aggregate(e)
	case *parser.BinaryExpr:
		return c.binary(e)
	}
	return nil, fmt.Errorf("%s: what labels a %T has is not known here", expr, expr)
}

func (c checker) selector(e *parser.VectorSelector) (labelSet, error) {
	own, ok := c.exported[e.Name]
	if !ok {
		return nil, fmt.Errorf("there is no metric %q", e.Name)
	}
	has := own.and(c.target.names()...)
	for _, m := range e.LabelMatchers {
		if m.Name != model.MetricNameLabel && !has[m.Name] {
			return nil, fmt.Errorf("%s has no label %q", e.Name, m.Name)
		}
	}
	return has, nil
}

func (c checker) call(e *parser.Call) (labelSet, error) {
	has := labelSet{}
	for _, arg := range e.Args {
		of, err := c.expr(arg)
		if err != nil {
			return nil, err
		}
		has.add(of.names()...)
	}
	switch e.Func.Name {
	case "label_replace":
		if source := e.Args[3].(*parser.StringLiteral).Val; !has[source] {
			return nil, fmt.Errorf("%s: there is no label %q", e, source)
		}
		return has.and(e.Args[1].(*parser.StringLiteral).Val), nil
	case "histogram_quantile":
		if !has["le"] {
			return nil, fmt.Errorf("%s: there is no label \"le\"", e)
		}
		return has.without("le"), nil
	}
	return has, nil
}

func (c checker) aggregate(e *parser.AggregateExpr) (labelSet, error) {
	has, err := c.expr(e.Expr)
	if err != nil {
		return nil, err
	}
	if err := all(e, has, e.Grouping); err != nil {
		return nil, err
	}
	if e.Without {
		return has.without(e.Grouping...), nil
	}
	return labelSet{}.and(e.Grouping...), nil
}

func (c checker) binary(e *parser.BinaryExpr) (labelSet, error) {
	left, err := c.expr(e.LHS)
	if err != nil {
		return nil, err
	}
	right, err := c.expr(e.RHS)
	if err != nil {
		return nil, err
	}
	match := e.VectorMatching
	if match == nil { // a number on one side
		return left.and(right.names()...), nil
	}
	for _, side := range []labelSet{left, right} {
		if err := all(e, side, match.MatchingLabels); err != nil {
			return nil, err
		}
	}
	switch match.Card {
	case parser.CardManyToOne:
		return left.and(match.Include...), all(e, right, match.Include)
	case parser.CardOneToMany:
		return right.and(match.Include...), all(e, left, match.Include)
	case parser.CardManyToMany: // and, or, unless
		if e.Op == parser.LOR {
			return left.and(right.names()...), nil
		}
		return left, nil
	}
	if match.On {
		return labelSet{}.and(match.MatchingLabels...), nil
	}
	return left, nil
}

// all is an error unless the set has all the names.
func all(e parser.Expr, has labelSet, names []string) error {
	for _, n := range names {
		if !has[n] {
			return fmt.Errorf("%s: there is no label %q, only %s", e, n, strings.Join(has.names(), ", "))
		}
	}
	return nil
}

// The checker finds what it is there to find.
func TestChecker(t *testing.T) {
	c := checker{exported{"a": {"x": true}, "b_bucket": {"le": true}, "c": {"y": true}}, labelSet{"job": true}}
	for query, want := range map[string]string{
		`a{x="1", job=~".+"}`:                         "job x",
		`count by (x) (a)`:                            "x",
		`sum without (x) (rate(a[5m]))`:               "job",
		`a == 1 unless on (job) c`:                    "job x",
		`a * on (job) group_left (y) c`:               "job x y",
		`a * on (job) group_right () c`:               "job y",
		`a + on (job) c`:                              "job",
		`count(a) or vector(0)`:                       "",
		`label_replace(a, "z", "$1", "x", "(.*)")`:    "job x z",
		`histogram_quantile(0.9, rate(b_bucket[5m]))`: "job",
		`nosuch`:                        `there is no metric "nosuch"`,
		`a{y="1"}`:                      `a has no label "y"`,
		`count by (y) (a)`:              `there is no label "y"`,
		`a unless on (x) c`:             `there is no label "x"`,
		`a * on (job) group_left (z) c`: `there is no label "z"`,
		`label_replace(a, "z", "$1", "y", "(.*)")`:         `there is no label "y"`,
		`histogram_quantile(0.9, sum(rate(b_bucket[5m])))`: `there is no label "le"`,
		`a{`: "unexpected end of input",
	} {
		has, err := c.query(query)
		if err != nil {
			if !strings.Contains(err.Error(), want) || want == "" {
				t.Errorf("%s: %v", query, err)
			}
		} else if got := strings.Join(has.names(), " "); got != want {
			t.Errorf("%s: labels %q, want %q", query, got, want)
		}
	}
}
