package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/pprof"
	"time"

	"k8s.io/klog/v2"
)

// serveHTTP serves /healthz until ctx ends. A port that is taken, as in an update on the host's
// network, is tried again: it must not keep the gate from its work.
func serveHTTP(ctx context.Context, address string, profile bool, checks ...func() error) {
	if address == "" {
		return
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		for _, check := range checks {
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		_, _ = w.Write([]byte("ok"))
	})
	if profile {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	for {
		err := server.ListenAndServe()
		if errors.Is(err, http.ErrServerClosed) {
			return
		}
		klog.ErrorS(err, "HTTP endpoint cannot be served; trying again", "address", address)
		select {
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
			return
		}
	}
}
