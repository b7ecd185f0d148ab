package accept

import (
	"net/netip"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/verbs/admission"
)

// Limits has the limits of a command's servers, and shows them to Prometheus. The table of all is
// in SECURITY.md.
type Limits struct {
	mu      sync.Mutex
	servers map[string]func() admission.Stats
	reached map[limit]func() uint64
}

// limit is one of a server, except that of its places.
type limit struct{ server, of string }

// Gate makes the gate of a server.
func (l *Limits) Gate(server string, places int) *Gate {
	g := admission.New[netip.Addr](places)
	l.Add(server, g.Stats)
	return g
}

// Add adds a server that has a gate of its own.
func (l *Limits) Add(server string, stats func() admission.Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.servers == nil {
		l.servers = map[string]func() admission.Stats{}
	}
	l.servers[server] = stats
}

// Reached adds a limit of a server of something else than places. count is how often a peer, or
// all, had as much of it as they may: what they asked for had to wait, or was refused.
func (l *Limits) Reached(server, of string, count func() uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reached == nil {
		l.reached = map[limit]func() uint64{}
	}
	l.reached[limit{server, of}] = count
}

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
func (l *Limits) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{placesDesc, heldDesc, refusedDesc, displacedDesc, reachedDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (l *Limits) Collect(ch chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for server, stats := range l.servers {
		s := stats()
		show := func(d *prometheus.Desc, kind prometheus.ValueType, n float64) {
			ch <- prometheus.MustNewConstMetric(d, kind, n, server)
		}
		show(placesDesc, prometheus.GaugeValue, float64(s.Places))
		show(heldDesc, prometheus.GaugeValue, float64(s.Held))
		show(refusedDesc, prometheus.CounterValue, float64(s.Refused))
		show(displacedDesc, prometheus.CounterValue, float64(s.Displaced))
	}
	for at, count := range l.reached {
		ch <- prometheus.MustNewConstMetric(reachedDesc, prometheus.CounterValue, float64(count()), at.server, at.of)
	}
}
