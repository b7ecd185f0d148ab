package proxy

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counters are what a proxy counts, for Prometheus.
type counters struct {
	open                                 atomic.Int64
	accepted, failed, toBytes, fromBytes atomic.Uint64
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("softrnic_proxy_"+name, help, labels, nil)
}

var (
	openDesc     = desc("connections", "Connections that are passed on now.")
	acceptedDesc = desc("accepted_connections_total", "Connections that have come.")
	failedDesc   = desc("failed_connections_total", "Connections that could not be passed on, or ended in an error.")
	bytesDesc    = desc("bytes_total", "Bytes that were passed on: to where connections go to, and back.", "direction")
)

// Describe implements prometheus.Collector.
func (*counters) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{openDesc, acceptedDesc, failedDesc, bytesDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *counters) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n *atomic.Uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n.Load()), labels...)
	}
	ch <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(c.open.Load()))
	count(acceptedDesc, &c.accepted)
	count(failedDesc, &c.failed)
	count(bytesDesc, &c.toBytes, "to")
	count(bytesDesc, &c.fromBytes, "back")
}
