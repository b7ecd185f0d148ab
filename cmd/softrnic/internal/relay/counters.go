package relay

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Counters are Prometheus metrics of the connections that a command forwards.
type Counters struct {
	Open               atomic.Int64  // connections that are being forwarded
	Accepted, Failed   atomic.Uint64 // connections
	ToBytes, FromBytes atomic.Uint64 // bytes from near to far, and from far to near: see Relay

	open, accepted, failed, bytes *prometheus.Desc
}

// NewCounters returns counters whose names begin with softrnic_ and the command's name.
func NewCounters(command string) *Counters {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("softrnic_"+command+"_"+name, help, labels, nil)
	}
	return &Counters{
		open:     desc("connections", "Connections that are being forwarded."),
		accepted: desc("accepted_connections_total", "Incoming connections that were accepted."),
		failed:   desc("failed_connections_total", "Connections that could not be forwarded, or ended in an error."),
		bytes:    desc("bytes_total", "Bytes forwarded. Direction to: from the client or program to the peer; back: the other way.", "direction"),
	}
}

// Describe implements prometheus.Collector.
func (c *Counters) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *Counters) Collect(ch chan<- prometheus.Metric) {
	count := func(d *prometheus.Desc, n *atomic.Uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n.Load()), labels...)
	}
	ch <- prometheus.MustNewConstMetric(c.open, prometheus.GaugeValue, float64(c.Open.Load()))
	count(c.accepted, &c.Accepted)
	count(c.failed, &c.Failed)
	count(c.bytes, &c.ToBytes, "to")
	count(c.bytes, &c.FromBytes, "back")
}
