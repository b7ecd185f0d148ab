package nfs

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// metrics are Prometheus metrics of the server.
type metrics struct {
	listener atomic.Pointer[rpcrdma.Listener] // nil: it does not listen yet

	connections, accepted, calls, replies, errors, bytes *prometheus.Desc
}

func newMetrics() *metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("softrnic_nfs_"+name, help, labels, nil)
	}
	return &metrics{
		connections: desc("connections", "Connections of clients."),
		accepted:    desc("accepted_connections_total", "Connections that were accepted."),
		calls:       desc("calls_total", "RPC calls received over RDMA."),
		replies:     desc("replies_total", "RPC replies sent over RDMA."),
		errors:      desc("errors_total", "RPC-over-RDMA error messages sent."),
		bytes: desc("bytes_total", "Bytes of RPC messages, by direction, and how they were moved: inline, or by RDMA.",
			"direction", "by"),
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.connections, m.accepted, m.calls, m.replies, m.errors, m.bytes} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	var s rpcrdma.Stats
	if l := m.listener.Load(); l != nil {
		s = l.Stats()
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	ch <- prometheus.MustNewConstMetric(m.connections, prometheus.GaugeValue, float64(s.Connections))
	count(m.accepted, s.Accepted)
	count(m.calls, s.Calls)
	count(m.replies, s.Replies)
	count(m.errors, s.Errors)
	count(m.bytes, s.Received-min(s.ByRead, s.Received), "received", "inline")
	count(m.bytes, s.ByRead, "received", "read")
	count(m.bytes, s.Sent-min(s.ByWrite, s.Sent), "sent", "inline")
	count(m.bytes, s.ByWrite, "sent", "write")
}
