package run

import (
	"context"
	"log/slog"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/internal/status/query"
	"github.com/softrnic/softrnic/rdmatransport/metrics"
)

// programs is a collector of the device counters of the program's processes, which it queries.
// Ended processes are not included.
type programs struct{ log *slog.Logger }

// Describe implements prometheus.Collector. The processes are not known in advance.
func (programs) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (p programs) Collect(ch chan<- prometheus.Metric) {
	nodes, err := query.Nodes(context.Background(), 0)
	if err != nil {
		p.log.Warn("the program's processes cannot be asked for what they count", "error", err)
	}
	for _, n := range nodes {
		if n.Run == os.Getpid() {
			prometheus.WrapCollectorWith(prometheus.Labels{"pid": strconv.Itoa(n.PID)},
				metrics.NewSnapshotCollector(n.Snapshot)).Collect(ch)
		}
	}
}

// serveMetrics serves Prometheus on --metrics until stop is called.
func (c *Command) serveMetrics(e *cli.Env, level slog.Level) (stop func(), err error) {
	log := e.Log(level)
	return running.ServeMetrics(c.Metrics, programs{log}, log)
}
