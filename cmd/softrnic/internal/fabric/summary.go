package fabric

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
	"time"

	network "github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/verbs"
)

// summary is the result of a run. Times are in microseconds, sizes in bytes.
type summary struct {
	Topology   string            `json:"topology"`
	Hosts      int               `json:"hosts"`
	Switches   int               `json:"switches"`
	Cables     int               `json:"cables"`
	Seed       int64             `json:"seed"`
	Virtual    float64           `json:"virtual_us"`
	Real       float64           `json:"real_s"`
	Flows      flowCounts        `json:"flows"`
	Early      bool              `json:"interrupted"` // the run was ended early
	Bytes      int64             `json:"bytes"`       // acknowledged
	Corrupt    int               `json:"corrupt"`
	Verified   bool              `json:"verified"`
	FCT        percentiles       `json:"fct_us"`
	Slowdown   percentiles       `json:"slowdown"`
	Workloads  []workloadSummary `json:"workloads"`
	Packets    network.Counters  `json:"packets"`
	Counters   map[string]uint64 `json:"counters"` // of all devices, as in verbs.Device.HWCounters
	MaxQueue   int               `json:"max_queue"`
	MaxQueueAt string            `json:"max_queue_at"`
	Imbalance  []imbalance       `json:"ecmp"`
	Failures   map[string]int    `json:"errors,omitempty"` // flows by status
	Digest     string            `json:"digest"`

	rows []row
}

type flowCounts struct {
	Planned    int `json:"planned"`
	Done       int `json:"done"`
	Failed     int `json:"failed"`
	Unfinished int `json:"unfinished"`
}

// workloadSummary is about the flows of a workload.
type workloadSummary struct {
	Kind     string      `json:"kind"`
	Flows    int         `json:"flows"`
	Done     int         `json:"done"`
	Bytes    int64       `json:"bytes"`
	Took     float64     `json:"took_us"` // from the start of its first flow to the end of its last
	Slowdown percentiles `json:"slowdown"`
}

// imbalance compares the bytes on the ways of equal length from a switch.
type imbalance struct {
	Node    string  `json:"node"`
	Ways    int     `json:"ways"`
	Busiest string  `json:"busiest"`
	Excess  float64 `json:"excess"` // of the busiest over the mean, as a share of the mean
}

// row is a flow that has ended.
type row struct {
	*flow
	fct, ideal time.Duration
}

func (w *row) slowdown() float64 { return float64(w.fct) / float64(w.ideal) }

// percentiles are those of a set of values.
type percentiles struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

func percentilesOf(values []float64) (p percentiles) {
	if len(values) == 0 {
		return p
	}
	slices.Sort(values)
	for _, v := range values {
		p.Mean += v / float64(len(values))
	}
	return percentiles{p.Mean, quantile(values, 0.5), quantile(values, 0.95), quantile(values, 0.99), quantile(values, 0.999),
		values[len(values)-1]}
}

// quantile is the least value that a share of the sorted values does not exceed.
func quantile(sorted []float64, share float64) float64 {
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// summarize evaluates the run.
func (r *run) summarize() *summary {
	s := &summary{Topology: r.cfg.Topology.Kind, Hosts: len(r.nodes), Switches: len(r.net.Topology.Switches),
		Cables: len(r.nodes) + len(r.net.Topology.Cables), Seed: r.cfg.Seed, Virtual: micro(r.now()), Real: r.wall.Seconds(),
		Counters: map[string]uint64{"completer_retry_err": 0, "selective_repeats": 0, "tail_probes": 0,
			"np_cnp_sent": 0, "out_of_seq_request": 0},
		Verified: r.verify, Packets: r.f.Counters(), Digest: r.digest, Imbalance: r.imbalances()}
	s.Flows.Planned = r.planned
	ideal := newIdeals(r)
	var all, fcts []float64
	by := make([][]float64, len(r.cfg.Workloads))
	begun, ended := make([]time.Duration, len(by)), make([]time.Duration, len(by))
	for _, w := range r.cfg.Workloads {
		s.Workloads = append(s.Workloads, workloadSummary{Kind: w.Kind})
	}
	for _, f := range r.flows {
		w := &s.Workloads[f.load]
		if w.Flows++; w.Flows == 1 {
			begun[f.load] = f.start
		}
		ended[f.load] = max(ended[f.load], f.end)
		s.Bytes, w.Bytes = s.Bytes+f.acked, w.Bytes+f.acked
		if f.corrupt {
			s.Corrupt++
		}
		switch {
		case f.finished():
			e := row{f, f.end - f.start, ideal.of(f)}
			s.rows = append(s.rows, e)
			s.Flows.Done, w.Done = s.Flows.Done+1, w.Done+1
			fcts = append(fcts, micro(e.fct))
			all = append(all, e.slowdown())
			by[f.load] = append(by[f.load], e.slowdown())
		case f.status != verbs.WCSuccess:
			s.Flows.Failed++
			if s.Failures == nil {
				s.Failures = map[string]int{}
			}
			s.Failures[f.status.String()]++
		}
	}
	s.Flows.Unfinished = s.Flows.Planned - s.Flows.Done - s.Flows.Failed
	s.FCT, s.Slowdown = percentilesOf(fcts), percentilesOf(all)
	for i := range s.Workloads {
		s.Workloads[i].Slowdown = percentilesOf(by[i])
		s.Workloads[i].Took = micro(max(0, ended[i]-begun[i]))
	}
	for _, p := range r.ports[len(r.nodes):] {
		if n := p.Counters().MaxQueue; n > s.MaxQueue {
			s.MaxQueue, s.MaxQueueAt = n, portName(p)
		}
	}
	for _, n := range r.nodes {
		counters, err := n.dev.HWCounters()
		r.check(err)
		for name := range s.Counters {
			s.Counters[name] += counters[name]
		}
	}
	return s
}

func micro(d time.Duration) float64 { return float64(d) / 1e3 }

func portName(p *network.Port) string { return p.Node() + ":" + p.Peer().Node() }

// print writes the summary for people.
func (s *summary) print(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	line("network", "%s, %d hosts, %d switches, %d cables, seed %d", s.Topology, s.Hosts, s.Switches, s.Cables, s.Seed)
	line("time", "%v virtual, %v real, %.2f million packets/s", micros(s.Virtual),
		time.Duration(s.Real*1e9).Round(time.Millisecond), float64(s.Packets.Sent)/s.Real/1e6)
	verified := ""
	if s.Verified {
		verified = ", all verified"
		if s.Corrupt > 0 {
			verified = fmt.Sprintf(", %d with wrong bytes", s.Corrupt)
		}
	}
	if s.Early {
		line("interrupted", "what follows is about the time before")
	}
	line("flows", "%d done, %d failed, %d unfinished; %d bytes acknowledged%s", s.Flows.Done, s.Flows.Failed, s.Flows.Unfinished, s.Bytes,
		verified)
	for _, status := range slices.Sorted(maps.Keys(s.Failures)) {
		line("", "%d: %s", s.Failures[status], status)
	}
	if s.Flows.Done > 0 {
		p := s.FCT
		line("FCT", "mean %v, median %v, 95 %% %v, 99 %% %v, max %v", micros(p.Mean), micros(p.P50), micros(p.P95), micros(p.P99), micros(p.Max))
		line("slowdown", "%s", s.Slowdown)
	}
	if len(s.Workloads) > 1 || s.Workloads[0].Flows > 1 {
		for _, l := range s.Workloads {
			if l.Done == 0 {
				line(l.Kind, "%d flows, none done", l.Flows)
			} else {
				line(l.Kind, "%d flows in %v, slowdown %s", l.Flows, micros(l.Took), l.Slowdown)
			}
		}
	}
	c := s.Packets
	flushed := ""
	if c.Flushed > 0 {
		flushed = fmt.Sprintf(", %d lost in switches that restart", c.Flushed)
	}
	trimmed := ""
	if c.Trimmed > 0 {
		trimmed = fmt.Sprintf(", %d trimmed", c.Trimmed)
	}
	line("packets", "%d sent, %d delivered, %d dropped%s, %d lost on cables%s", c.Sent, c.Delivered, c.Dropped, trimmed, c.Lost, flushed)
	line("repeats", "%d times from a packet on, %d single packets, %d probes", s.Counters["completer_retry_err"],
		s.Counters["selective_repeats"],
		s.Counters["tail_probes"])
	line("congestion", "%d packets marked, %d CNPs, %d pauses", c.Marked, s.Counters["np_cnp_sent"], c.Pauses)
	if s.MaxQueue > 0 {
		line("longest queue", "%d bytes at %s", s.MaxQueue, s.MaxQueueAt)
	}
	if len(s.Imbalance) > 0 {
		sum, worst := 0.0, s.Imbalance[0]
		for _, i := range s.Imbalance {
			sum += i.Excess
			if i.Excess > worst.Excess {
				worst = i
			}
		}
		line("ECMP", "the busiest of equal ways carries %.0f %% more than their mean, on average of %d groups; at worst %.0f %% (%s to %s)",
			100*sum/float64(len(s.Imbalance)), len(s.Imbalance), 100*worst.Excess, worst.Node, worst.Busiest)
	}
	line("digest", "%s", s.Digest)
	_ = w.Flush() // cli reports errors of the output
}

// String lists the values.
func (p percentiles) String() string {
	return fmt.Sprintf("mean %.3g, median %.3g, 95 %% %.3g, 99 %% %.3g, max %.3g", p.Mean, p.P50, p.P95, p.P99, p.Max)
}

// micros returns microseconds as a duration with about four digits.
func micros(us float64) time.Duration {
	d := time.Duration(us * 1e3)
	for unit := time.Duration(1e9); unit > 1; unit /= 10 {
		if d >= 1000*unit {
			return d.Round(unit)
		}
	}
	return d
}
