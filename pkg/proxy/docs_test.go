package proxy

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/csi-rdma-gate/csi-rdma-gate/pkg/probe"
)

// The documentation quotes what kubelet puts into events. Here every answer is provoked and has to be among the quotes, and no
// quote may be of anything else.
func TestDocumentationQuotesEveryAnswerAndNoOther(t *testing.T) {
	quoted := quotedAnswers(t)
	given := map[string]bool{}
	for _, err := range everyAnswer(t) {
		answer := unfold(err.Error())
		given[answer] = true
		if !quoted[answer] {
			t.Errorf("not quoted: %s", answer)
		}
	}
	for answer := range quoted {
		if !given[answer] {
			t.Errorf("quoted, but given by nothing: %s", answer)
		}
	}
}

// An answer that everyAnswer does not know of shows in the number of places that give one.
func TestDocumentationHasAnAnswerForEachPlaceThatGivesOne(t *testing.T) {
	have := map[string]int{}
	for answer := range quotedAnswers(t) {
		have[strings.Fields(answer)[4]]++ // rpc error: code = CODE desc = …
	}
	for code, places := range placesByCode(t) {
		if have[code] < places {
			t.Errorf("%d places answer %s, %d such answers are quoted", places, code, have[code])
		}
	}
}

// everyAnswer provokes each answer that is the gate's own.
func everyAnswer(t *testing.T) (answers []error) {
	add := func(err error) { answers = append(answers, err) }

	r := newRig(t, nil)
	recovering, overridden := closed(), closed()
	recovering.Verdict = probe.Healthy
	overridden.Override = &probe.Override{Why: "switch maintenance"}
	r.health.set(recovering)
	add(r.stage("pvc-1", "/s"))
	r.health.set(overridden)
	add(r.publish("pvc-1", "/p"))
	r.health.set(closed())
	add(r.stage("pvc-1", "/s"))

	end, err := r.volumes.begin(&request{method: csi.Node_NodeStageVolume_FullMethodName, volume: "pvc-1", path: "/begun"})
	if err != nil {
		t.Fatal(err)
	}
	add(r.stage("pvc-1", "/begun"))
	end(status.Error(codes.Aborted, "busy"))
	add(r.stage("pvc-1", "/begun"))
	r.volumes.inherited = newInherited([]attempt{{driver: "rdma.example.com", volume: "pvc-1", paths: []string{"/before"}}}, nil)
	add(r.stage("pvc-1", "/before"))
	r.gate.mounted = func([]string) (bool, error) {
		return false, &fs.PathError{Op: "open", Path: "/proc/self/mountinfo", Err: syscall.EACCES}
	}
	add(r.stage("pvc-1", "/s"))

	for _, m := range []*csi.NodeStageVolumeRequest{{}, {VolumeId: "v"}, {VolumeId: "v", StagingTargetPath: "/s"}} {
		_, err := r.node().NodeStageVolume(t.Context(), m)
		add(err)
	}
	_, err = r.node().NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: "v"})
	add(err)
	_, err = r.raw(t.Context(), csi.Node_NodeStageVolume_FullMethodName, frame("\xff\xff"))
	add(err)
	_, err = r.raw(t.Context(), "/grpc.health.v1.Health/Check", nil)
	add(err)
	_, err = receive(brokenStream{})
	add(err)

	r.health.set(open())
	r.volumes.paths = maxPaths
	add(r.stage("pvc-2", "/s"))

	away := newRig(t, nil)
	away.driver.stop()
	err = away.stage("pvc-1", "/s")
	add(status.Error(status.Code(err), strings.ReplaceAll(status.Convert(err).Message(), away.driver.address, "/csi/csi.sock")))
	return answers
}

// brokenStream is a caller that has gone before its request arrived.
type brokenStream struct{ grpc.ServerStream }

func (brokenStream) RecvMsg(any) error { return status.FromContextError(context.Canceled).Err() }

// quotedAnswers are the paragraphs that read like one.
func quotedAnswers(t *testing.T) map[string]bool {
	t.Helper()
	doc, err := os.ReadFile("../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := map[string]bool{}
	for paragraph := range strings.SplitSeq(string(doc), "\n\n") {
		if answer := unfold(paragraph); strings.HasPrefix(answer, "rpc error: ") {
			quoted[answer] = true
		}
	}
	return quoted
}

// unfold undoes line breaks, and the blanks of another kind that protobuf's errors have at random.
func unfold(text string) string { return strings.Join(strings.Fields(text), " ") }

// placesByCode counts the calls in this package's source that make a status.
func placesByCode(t *testing.T) map[string]int {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]int{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				switch selected(call.Fun, "status") {
				case "Error", "Errorf", "New":
					places[selected(call.Args[0], "codes")]++
				}
			}
			return true
		})
	}
	return places
}

// selected is NAME of pkg.NAME; empty for anything else.
func selected(e ast.Expr, pkg string) string {
	if s, ok := e.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok && x.Name == pkg {
			return s.Sel.Name
		}
	}
	return ""
}
