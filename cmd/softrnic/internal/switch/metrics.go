package ethswitch

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

func desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("softrnic_switch_"+name+"_total", help, []string{"port", "link"}, nil)
}

var (
	receivedDesc      = desc("received_frames", "Frames that have come to the port. A superframe is one.")
	receivedBytesDesc = desc("received_bytes", "Bytes of these.")
	sentDesc          = desc("sent_frames", "Frames that were passed on to the port.")
	sentBytesDesc     = desc("sent_bytes", "Bytes of these.")
	droppedDesc       = desc("dropped_frames", "Frames that the port's link did not take.")
)

// Describe implements prometheus.Collector.
func (s *Switch) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }

// Collect implements prometheus.Collector.
func (s *Switch) Collect(ch chan<- prometheus.Metric) {
	for _, p := range s.snapshot() {
		counter := func(d *prometheus.Desc, n uint64) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), strconv.Itoa(p.number), p.link.Name())
		}
		counter(receivedDesc, p.received.Load())
		counter(receivedBytesDesc, p.receivedBytes.Load())
		counter(sentDesc, p.sent.Load())
		counter(sentBytesDesc, p.sentBytes.Load())
		counter(droppedDesc, p.dropped.Load())
	}
}
