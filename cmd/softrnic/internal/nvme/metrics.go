package nvme

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// collector has the metrics of a target.
type collector struct {
	target atomic.Pointer[target.Target] // nil before it listens
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("softrnic_nvme_"+name, help, labels, nil)
}

var (
	controllersDesc = desc("controllers", "Controllers of hosts, by service.", "service")
	queuesDesc      = desc("queues", "Connections of hosts: Admin queues and I/O queues.")
	commandsDesc    = desc("commands_total", "Read and Write commands, by operation.", "operation")
	bytesDesc       = desc("bytes_total", "Bytes that these commands have read or written, by operation.", "operation")
	copiedDesc      = desc("copied_bytes_total", "Of these bytes, those that were copied, and not moved by RDMA alone.")
	errorsDesc      = desc("errors_total", "Commands that have failed.")
	authDesc        = desc("unauthenticated_total", "Queues whose host has failed to authenticate itself.")
	lostDesc        = desc("lost_namespaces", "Namespaces that may have lost data: no flush succeeds until the command is started again.")
)

// Describe implements prometheus.Collector.
func (*collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{controllersDesc, queuesDesc, commandsDesc, bytesDesc, copiedDesc, errorsDesc, authDesc, lostDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	t := c.target.Load()
	if t == nil {
		return
	}
	s := t.Stats()
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	count := func(d *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	gauge(controllersDesc, s.Controllers, "io")
	gauge(controllersDesc, s.Discovering, "discovery")
	gauge(queuesDesc, s.Queues)
	count(commandsDesc, s.Reads, "read")
	count(commandsDesc, s.Writes, "write")
	count(bytesDesc, s.ReadBytes, "read")
	count(bytesDesc, s.WrittenBytes, "write")
	count(copiedDesc, s.CopiedBytes)
	count(errorsDesc, s.Errors)
	count(authDesc, s.Unauthenticated)
	gauge(lostDesc, s.Lost)
}
