package running

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/verbs/admission"
)

// limitsCollector shows the limits of a command's servers to Prometheus.
type limitsCollector struct{ *accept.Limits }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("softrnic_"+name, help, append([]string{"server"}, labels...), nil)
}

var (
	placesDesc    = desc("connection_places", "Connections that a server of the command may have.")
	heldDesc      = desc("held_connection_places", "Connections that it has, with those that are being set up.")
	refusedDesc   = desc("refused_connections_total", "Connections that were refused, because the peer or all had as many as they may.")
	displacedDesc = desc("displaced_connections_total", "Connections without a valid message that were ended to make room for others.")
	reachedDesc   = desc("limit_reached_total", "What had to wait, or was refused, as the peer or all had as much as they may, by what it is.",
		"limit")
)

// Describe implements prometheus.Collector.
func (l limitsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{placesDesc, heldDesc, refusedDesc, displacedDesc, reachedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l limitsCollector) Collect(ch chan<- prometheus.Metric) {
	l.Each(func(server string, s admission.Stats) {
		show := func(d *prometheus.Desc, kind prometheus.ValueType, n float64) {
			ch <- prometheus.MustNewConstMetric(d, kind, n, server)
		}
		show(placesDesc, prometheus.GaugeValue, float64(s.Places))
		show(heldDesc, prometheus.GaugeValue, float64(s.Held))
		show(refusedDesc, prometheus.CounterValue, float64(s.Refused))
		show(displacedDesc, prometheus.CounterValue, float64(s.Displaced))
	}, func(server, of string, count uint64) {
		ch <- prometheus.MustNewConstMetric(reachedDesc, prometheus.CounterValue, float64(count), server, of)
	})
}
