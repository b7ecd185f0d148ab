package run

import (
	"context"
	"log/slog"
	"os"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/rdmatransport/metrics"
)

// programs is a collector of what the devices of the program's processes count, which it asks them for. A process that has ended
// is not in it any more.
type programs struct{ log *slog.Logger }

// Describe implements prometheus.Collector: the processes are not known before they are asked.
func (programs) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (p programs) Collect(ch chan<- prometheus.Metric) {
	nodes, err := status.Nodes(context.Background(), 0)
	if err != nil {
		p.log.Warn("the program's processes cannot be asked for what they count", "error", err)
	}
	for _, n := range nodes {
		if n.Run == os.Getpid() {
			prometheus.WrapCollectorWith(prometheus.Labels{"pid": strconv.Itoa(n.PID)}, metrics.NewSnapshotCollector(n.Snapshot)).Collect(ch)
		}
	}
}

// serveMetrics answers Prometheus on --metrics, until the function that it returns is called.
func (c *Command) serveMetrics(e *cli.Env) (stop func(), err error) {
	level := slog.LevelWarn
	if c.Log != nil {
		level = *c.Log
	}
	log := slog.New(slog.NewTextHandler(e.Stderr, &slog.HandlerOptions{Level: level}))
	return running.ServeMetrics(c.Metrics, programs{log}, log)
}
