// Package metrics is a Prometheus collector of RDMA devices:
//
//	dev.MeasureLatency() // before there are QPs, if latencies are wanted
//	prometheus.MustRegister(metrics.NewCollector(dev))
//
// The metrics of node_exporter's infiniband collector have the same names here, so that dashboards
// for hardware devices work: node_infiniband_port_data_received_bytes_total and so on, by device
// and port. The other counters of [verbs.Device.HWCounters] are softrnic_NAME_total, by device and
// transport; package rdmatransport documents them. In addition there are
//
//	softrnic_send_latency_seconds  a histogram of how long send requests take, by device and transport: see
//	                               [verbs.Device.MeasureLatency]
//	softrnic_qps                   queue pairs by device, transport, type and state
//	softrnic_resources             objects of the device by kind, as `rdma resource show` counts them
//
// [NewBuildInfoCollector] adds softrnic_build_info, with the version.
package metrics

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/verbs"
)

// portCounter is a counter of [verbs.Device.PortCounters], with node_exporter's name, in units of
// unit.
type portCounter struct {
	name, metric, help string
	unit               float64
}

var portCounters = []portCounter{
	{"port_xmit_data", "port_data_transmitted_bytes_total", "Bytes of RoCE packets that the port has sent, with their Ethernet headers.",
		4},
	{"port_rcv_data", "port_data_received_bytes_total", "Bytes of RoCE packets that the port has received, with their Ethernet headers.",
		4},
	{"port_xmit_packets", "port_packets_transmitted_total", "RoCE packets that the port has sent.", 1},
	{"port_rcv_packets", "port_packets_received_total", "RoCE packets that the port has received.", 1},
	{"unicast_xmit_packets", "unicast_packets_transmitted_total", "RoCE packets that the port has sent to one host.", 1},
	{"unicast_rcv_packets", "unicast_packets_received_total", "RoCE packets that the port has received for itself.", 1},
	{"multicast_xmit_packets", "multicast_packets_transmitted_total", "RoCE packets that the port has sent to a group.", 1},
	{"multicast_rcv_packets", "multicast_packets_received_total", "RoCE packets that the port has received for a group.", 1},
	{"port_rcv_errors", "port_errors_received_total", "Packets received with a wrong length, checksum or source address.", 1},
	{"port_xmit_discards", "port_discards_transmitted_total", "Packets that the link has refused, or that no neighbour was found for.", 1},
}

func portDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("node_infiniband_"+name, help, []string{"device", "port"}, nil)
}

var (
	portDescs = func() (d []*prometheus.Desc) {
		for _, c := range portCounters {
			d = append(d, portDesc(c.metric, c.help))
		}
		return d
	}()
	stateDesc     = portDesc("state_id", "State of the port (1: down, 2: init, 3: armed, 4: active).")
	physStateDesc = portDesc("physical_state_id", "Physical state of the port (3: disabled, 5: link up).")
	rateDesc      = portDesc("rate_bytes_per_second", "Signalling rate that the port reports.")

	// As in sysfs, which is what node_exporter reads.
	infoDesc = prometheus.NewDesc("node_infiniband_info", "Non-numeric data of the device; the value is always 1.",
		[]string{"device", "board_id", "firmware_version", "hca_type"}, nil)

	latencyDesc = prometheus.NewDesc("softrnic_send_latency_seconds",
		"How long send requests took, from posting to completion, of those that were measured.", []string{"device", "transport"}, nil)
	qpsDesc = prometheus.NewDesc("softrnic_qps", "Queue pairs.", []string{"device", "transport", "type", "state"}, nil)
	objDesc = prometheus.NewDesc("softrnic_resources", "Objects of the device.", []string{"device", "resource"}, nil)
)

// Collector is a prometheus.Collector of some devices. It may be used until they are closed.
type Collector struct {
	read func() []verbs.Snapshot
	hw   map[string]*prometheus.Desc // descriptions of the devices' counters, by name
}

// NewCollector returns a collector of devices, which must have different names.
func NewCollector(devs ...*verbs.Device) *Collector {
	return newCollector(func() (all []verbs.Snapshot) {
		for _, dev := range devs {
			all = append(all, dev.Snapshot())
		}
		return all
	})
}

// NewSnapshotCollector returns a collector of a snapshot of a device, perhaps of another process.
func NewSnapshotCollector(s verbs.Snapshot) *Collector {
	return newCollector(func() []verbs.Snapshot { return []verbs.Snapshot{s} })
}

func newCollector(read func() []verbs.Snapshot) *Collector {
	c := &Collector{read: read, hw: make(map[string]*prometheus.Desc)}
	for _, s := range read() {
		for name := range s.Counters {
			if isPortCounter(name) || c.hw[name] != nil {
				continue
			}
			c.hw[name] = prometheus.NewDesc("softrnic_"+name+"_total", "The hardware counter "+name+".", []string{"device", "transport"},
				nil)
		}
	}
	return c
}

func isPortCounter(name string) bool {
	return slices.ContainsFunc(portCounters, func(c portCounter) bool { return c.name == name })
}

// transportOf returns the wire protocol of a counter.
func transportOf(counter string) string {
	switch {
	case strings.HasPrefix(counter, "iwarp_"):
		return "iwarp"
	case strings.HasPrefix(counter, "raw_"), counter == "link_downed", counter == "injected_faults":
		return "none"
	}
	return "rocev2"
}

// label returns a wire protocol's name on the command line.
func label(t verbs.Transport) string { return strings.ToLower(t.String()) }

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range portDescs {
		ch <- d
	}
	for d := range maps.Values(c.hw) {
		ch <- d
	}
	for _, d := range []*prometheus.Desc{infoDesc, stateDesc, physStateDesc, rateDesc, latencyDesc, qpsDesc, objDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. It locks each QP for a moment.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.read() {
		c.collect(ch, &s)
	}
}

func (c *Collector) collect(ch chan<- prometheus.Metric, s *verbs.Snapshot) {
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, append([]string{s.Device}, labels...)...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{s.Device}, labels...)...)
	}
	gauge(infoDesc, 1, "softrnic", s.FWVer, "softrnic")
	for i, port := range s.Ports {
		number := strconv.Itoa(i + 1)
		for i, p := range portCounters {
			counter(portDescs[i], float64(port.Counters[p.name])*p.unit, number)
		}
		gauge(stateDesc, float64(port.Attr.State), number)
		gbps, _ := port.Attr.Rate()
		gauge(physStateDesc, float64(port.Attr.PhysState), number)
		gauge(rateDesc, gbps*1e9/8, number)
	}
	for name, n := range s.Counters {
		if d := c.hw[name]; d != nil {
			counter(d, float64(n), transportOf(name))
		}
	}
	for transport, l := range s.Latencies {
		classes, below := make(map[float64]uint64), uint64(0)
		for i, n := range l.Classes[:len(l.Classes)-1] {
			below += n
			classes[l.Bound(i).Seconds()] = below
		}
		ch <- prometheus.MustNewConstHistogram(latencyDesc, l.Count, l.Sum.Seconds(), classes, s.Device, label(transport))
	}
	for _, k := range s.QPKinds {
		gauge(qpsDesc, float64(k.Count), label(k.Transport), k.Type.String(), k.State.String())
	}
	r := s.Resources
	for name, n := range map[string]int{
		"pd": r.PD, "mr": r.MR, "mw": r.MW, "ah": r.AH, "cq": r.CQ, "srq": r.SRQ, "qp": r.QP, "comp_channel": r.CompChannel,
	} {
		gauge(objDesc, float64(n), name)
	}
}
