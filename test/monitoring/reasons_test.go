package monitoring

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// reasons are all constants of type Reason in package probe's source.
func reasons(t *testing.T) []probe.Reason {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../pkg/probe/health.go", nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []probe.Reason
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == "Reason" {
			text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, probe.Reason(text))
		}
		return false
	})
	if len(found) < 20 {
		t.Fatalf("only these Reasons: %v", found)
	}
	return found
}
