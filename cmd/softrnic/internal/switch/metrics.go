package ethswitch

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/link/fabric"
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
	refusedDesc       = desc("refused_frames", "Frames of the port that the network did not take: too long, or its adapter is full.")
)

// Of the network of --fabric, by the node and the neighbour of an output port.
var (
	queuedDesc = prometheus.NewDesc("softrnic_switch_network_queued_bytes", "Bytes in the output queues.", networkLabels, nil)

	networkDescs = []struct {
		desc  *prometheus.Desc
		count func(n *fabric.PortCounters) uint64
	}{
		{networkDesc("packets", "Packets sent."), func(n *fabric.PortCounters) uint64 { return n.Packets }},
		{networkDesc("bytes", "Bytes of these, with preamble, FCS and gap."), func(n *fabric.PortCounters) uint64 { return n.Bytes }},
		{networkDesc("marked_packets", "Packets marked with Congestion Experienced."), func(n *fabric.PortCounters) uint64 { return n.Marked }},
		{networkDesc("dropped_packets", "Packets lost for want of room."), func(n *fabric.PortCounters) uint64 { return n.Dropped }},
		{networkDesc("trimmed_packets", "Packets cut to their headers instead of dropped."),
			func(n *fabric.PortCounters) uint64 { return n.Trimmed }},
		{networkDesc("pauses", "Times that the neighbour has paused a class (PFC)."), func(n *fabric.PortCounters) uint64 { return n.Pauses }},
	}
	networkLabels = []string{"node", "peer"}
)

func networkDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("softrnic_switch_network_"+name+"_total", help, networkLabels, nil)
}

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
		if s.net != nil {
			counter(refusedDesc, p.refused.Load())
		}
	}
	if s.net != nil {
		s.net.collect(ch)
	}
}

// collect adds the metrics of each port of the network.
func (n *network) collect(ch chan<- prometheus.Metric) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.fabric.Ports() {
		node, peer := p.Node(), p.Peer().Node()
		c := p.Counters()
		for _, d := range networkDescs {
			ch <- prometheus.MustNewConstMetric(d.desc, prometheus.CounterValue, float64(d.count(&c)), node, peer)
		}
		ch <- prometheus.MustNewConstMetric(queuedDesc, prometheus.GaugeValue, float64(p.Queued()), node, peer)
	}
}
