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

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// serveMetrics serves Prometheus on --metrics until stop is called.
func (f *Flags) serveMetrics(n *node.Node) (stop func(), err error) {
	if f.Metrics == "" {
		return func() {}, nil
	}
	n.Dev.MeasureLatency()
	all := prometheus.NewRegistry() // a Registry is a Collector
	all.MustRegister(metrics.NewCollector(n.Dev))
	if f.Collector != nil {
		all.MustRegister(f.Collector)
	}
	return ServeMetrics(f.Metrics, all, n.Log)
}

// ServeMetrics serves the metrics of a collector to Prometheus on an address, HOST:PORT, until stop
// is called. If addr is "", it does nothing.
func ServeMetrics(addr string, c prometheus.Collector, log *slog.Logger) (stop func(), err error) {
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
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan struct{})
	go func() {
		_ = s.Serve(l)
		close(ended)
	}()
	return func() { _ = s.Close(); <-ended }, nil
}
