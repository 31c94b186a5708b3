package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func get(mux *http.ServeMux, path string) int {
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code
}

var nothing = http.NotFoundHandler()

func TestHealthzFailsWithAnyCheck(t *testing.T) {
	var first, second error
	mux := newDiagnostics(nothing, nothing, false, func() error { return first }, func() error { return second })
	if code := get(mux, "/healthz"); code != http.StatusOK {
		t.Errorf("all is well: %d", code)
	}
	second = errors.New("put socket in place: read-only file system")
	if code := get(mux, "/healthz"); code != http.StatusInternalServerError {
		t.Errorf("a socket is missing: %d", code)
	}
}

func TestPprofOnlyWhenAskedFor(t *testing.T) {
	for profile, want := range map[bool]int{false: http.StatusNotFound, true: http.StatusOK} {
		if code := get(newDiagnostics(nothing, nothing, profile), "/debug/pprof/"); code != want {
			t.Errorf("profile %v: %d", profile, code)
		}
	}
}

func TestLivenessIsTheDriversProbe(t *testing.T) {
	var answer error
	mux := newLiveness(time.Minute, func(ctx context.Context) error {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("no deadline")
		}
		return answer
	})
	if code := get(mux, "/healthz"); code != http.StatusOK {
		t.Errorf("ready: %d", code)
	}
	answer = errors.New("not ready")
	if code := get(mux, "/healthz"); code != http.StatusInternalServerError {
		t.Errorf("not ready: %d", code)
	}
}
