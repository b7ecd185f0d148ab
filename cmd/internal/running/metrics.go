package running

import (
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/softrnic/softrnic/rdmatransport/metrics"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// startMetrics serves Prometheus on --metrics until stop is called.
func (f *Flags) startMetrics(n *node.Node) (stop func(), err error) {
	if f.Metrics == "" {
		return func() {}, nil
	}
	n.Dev.MeasureLatency()
	all := prometheus.NewRegistry() // a Registry is a Collector
	all.MustRegister(metrics.NewCollector(n.Dev), limitsCollector{f.Limits})
	if n.TLS != nil {
		f.Limits.Reached("tls", "handshakes", n.TLS.Displaced)
	}
	if f.Collector != nil {
		all.MustRegister(f.Collector)
	}
	return serveMetrics(f.Metrics, all, f.Limits, n.Log)
}

// ServeMetrics serves the metrics of a collector to Prometheus on an address, HOST:PORT, until stop
// is called. If addr is "", it does nothing.
func ServeMetrics(addr string, c prometheus.Collector, log *slog.Logger) (stop func(), err error) {
	limits := new(accept.Limits)
	all := prometheus.NewRegistry()
	all.MustRegister(c, limitsCollector{limits})
	return serveMetrics(addr, all, limits, log)
}

// Limits of the metrics' connections. Each has one request, since a peer could otherwise keep its
// connection for as long as it likes.
const (
	maxConns     = 64
	readTimeout  = 5 * time.Second
	writeTimeout = 10 * time.Second
)

// serveMetrics is ServeMetrics with given limits, to which it adds its own.
func serveMetrics(addr string, c prometheus.Collector, limits *accept.Limits, log *slog.Logger) (stop func(), err error) {
	if addr == "" {
		return func() {}, nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewBuildInfoCollector())
	registry.MustRegister(c)
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--metrics %s: %w", addr, err)
	}
	log.Info("metrics", "url", "http://"+l.Addr().String()+"/metrics")
	mux := http.NewServeMux()
	mux.Handle("GET /metrics",
		promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}))
	s := &http.Server{Handler: mux, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, MaxHeaderBytes: 16 << 10}
	s.SetKeepAlivesEnabled(false)
	gate := limits.Gate("metrics", maxConns)
	ended := make(chan struct{})
	go func() {
		_ = s.Serve(accept.Guard(l, gate))
		close(ended)
	}()
	return func() { _ = s.Close(); <-ended }, nil
}
