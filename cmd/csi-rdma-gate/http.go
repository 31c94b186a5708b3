package main

import (
	"context"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"k8s.io/klog/v2"
)

// newDiagnostics is what --http-endpoint serves: /metrics, /status, /healthz, which fails when one of
// the checks does, and pprof if asked for.
func newDiagnostics(metrics, status http.Handler, profile bool, checks ...func() error) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics)
	mux.Handle("/status", status)
	mux.HandleFunc("/healthz", healthz(func(context.Context) error {
		for _, check := range checks {
			if err := check(); err != nil {
				return err
			}
		}
		return nil
	}))
	if profile {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// newLiveness is what --liveness-endpoint serves: livenessprobe's /healthz, the driver's own Probe.
func newLiveness(timeout time.Duration, ask func(context.Context) error) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", healthz(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return ask(ctx)
	}))
	return mux
}

func healthz(check func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := check(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte("ok"))
	}
}

// serveHTTP serves until ctx ends; no address, no server. A port that is taken, as by the pod before
// this one on the host's network, is tried again: it must not keep the gate from its work.
func serveHTTP(ctx context.Context, address string, handler http.Handler) {
	if address == "" {
		return
	}
	said := ""
	for ctx.Err() == nil {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err == nil {
			if said != "" {
				klog.InfoS("HTTP endpoint can be served now", "address", address)
			}
			err, said = serveOn(ctx, l, handler), ""
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			klog.ErrorS(err, "HTTP endpoint cannot be served; trying again", "address", address)
		}
		select {
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
		}
	}
}

// serveOn returns why it could not go on.
func serveOn(ctx context.Context, l net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	return server.Serve(l)
}
