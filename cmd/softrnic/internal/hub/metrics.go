package hub

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/stack/hub"
)

// collector exports a hub's counters to Prometheus.
type collector hub.Counters

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("softrnic_hub_"+name, help, nil, nil)
}

var (
	clientsDesc  = desc("clients", "Nodes that share the hub's addresses.")
	receivedDesc = desc("received_datagrams_total",
		"Datagrams that the hub received in place of a node. Several that GRO merged count once.")
	bytesDesc   = desc("received_bytes_total", "Bytes of their payload.")
	droppedDesc = desc("dropped_datagrams_total", "Datagrams without a receiver, or that their node did not receive in time.")
	refusedDesc = desc("refused_total",
		"Connections and requests of nodes that were refused, as the node, its user, or all have as much as they may.")
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(clientsDesc, prometheus.GaugeValue, float64(c.Clients.Load()))
	for d, n := range map[*prometheus.Desc]uint64{receivedDesc: c.Received.Load(), bytesDesc: c.Bytes.Load(),
		droppedDesc: c.Dropped.Load(), refusedDesc: c.Refused.Load()} {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n))
	}
}
