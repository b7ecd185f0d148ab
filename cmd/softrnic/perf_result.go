package main

import (
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// perfResult is what came of a measurement: a line of the table.
type perfResult struct {
	Operation     string       `json:"operation"`
	Metric        string       `json:"metric"`
	Over          string       `json:"over"` // RoCEv2, iWARP, TCP or kernel TCP
	Size          int          `json:"message_size"`
	QPs           int          `json:"qps"`
	Depth         int          `json:"depth"`
	Bidirectional bool         `json:"bidirectional"`
	Iterations    int64        `json:"iterations"`
	Seconds       float64      `json:"seconds"`
	Gbps          float64      `json:"gbit_per_second"`
	GbpsPeak      float64      `json:"gbit_per_second_peak"`
	Mpps          float64      `json:"million_messages_per_second"`
	CPUPerGB      float64      `json:"cpu_seconds_per_gb"`                // of this process
	PeerCPUPerGB  float64      `json:"peer_cpu_seconds_per_gb,omitempty"` // of the other, if that is another
	Verified      int64        `json:"verified,omitempty"`
	CPUSeconds    float64      `json:"cpu_seconds"`
	Mallocs       uint64       `json:"allocations"` // of this process while messages went, whatever for
	Allocs        float64      `json:"allocations_per_message"`
	PeerAllocs    float64      `json:"peer_allocations_per_message,omitempty"` // of the other process, if that is another
	Latency       *perfLatency `json:"latency_us,omitempty"`
}

// perfLatency is in microseconds.
type perfLatency struct {
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	Typical float64 `json:"typical"` // the median
	Avg     float64 `json:"avg"`
	Stdev   float64 `json:"stdev"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p99_9"`
	// Distribution is the latency that so many percent do not exceed.
	Distribution []perfPercentile `json:"distribution"`
}

type perfPercentile struct {
	Percent float64 `json:"percent"`
	Latency float64 `json:"us"`
}

// result is this side's, of what it has sent.
func (s *perfSide) result(cpu time.Duration, mallocs uint64) *perfResult {
	p := s.plan
	r := &perfResult{Operation: p.Op, Metric: p.Metric, Over: p.Over, Size: p.Size, QPs: p.QPs, Depth: p.Depth,
		Bidirectional: p.Bidirectional, CPUSeconds: cpu.Seconds(), Mallocs: mallocs}
	peak := 0.0
	var times *hdrhistogram.Histogram
	for _, l := range s.lanes {
		m := l.meter()
		r.Iterations += m.messages
		r.Verified += m.verified
		r.Seconds = max(r.Seconds, m.took.Seconds())
		peak += m.peak
		if m.latency != nil && m.messages > 0 {
			if times == nil {
				times = m.latency
			} else {
				times.Merge(m.latency)
			}
		}
	}
	if times != nil {
		r.Latency = newPerfLatency(times)
	}
	if r.Seconds > 0 {
		r.Mpps = float64(r.Iterations) / r.Seconds / 1e6
	}
	r.Gbps = r.Mpps * float64(8*p.Size) / 1e3
	r.GbpsPeak = max(r.Gbps, peak*float64(8*p.Size)/1e9)
	return r
}

// merge adds what the peer has measured. shared says that both are of one process.
func (r *perfResult) merge(peer *perfResult, shared bool) {
	r.Verified += peer.Verified
	if r.Metric != perfLat {
		r.Iterations += peer.Iterations
		r.Gbps += peer.Gbps
		r.GbpsPeak += peer.GbpsPeak
		r.Mpps += peer.Mpps
	}
	if r.Iterations > 0 {
		r.Allocs = float64(r.Mallocs) / float64(r.Iterations)
		if !shared {
			r.PeerAllocs = float64(peer.Mallocs) / float64(r.Iterations)
		}
	}
	gb := float64(r.Iterations) * float64(r.Size) / 1e9
	if r.Metric == perfLat && (r.Operation == perfSend || r.Operation == perfWrite) {
		gb *= 2 // there and back
	}
	if gb == 0 {
		return
	}
	r.CPUPerGB = r.CPUSeconds / gb
	if !shared {
		r.PeerCPUPerGB = peer.CPUSeconds / gb
	}
}

func newPerfLatency(h *hdrhistogram.Histogram) *perfLatency {
	us := func(ns int64) float64 { return float64(ns) / 1e3 }
	l := &perfLatency{Min: us(h.Min()), Max: us(h.Max()), Typical: us(h.ValueAtPercentile(50)), Avg: h.Mean() / 1e3,
		Stdev: h.StdDev() / 1e3, P99: us(h.ValueAtPercentile(99)), P999: us(h.ValueAtPercentile(99.9))}
	for _, b := range h.CumulativeDistributionWithTicks(10) {
		l.Distribution = append(l.Distribution, perfPercentile{b.Quantile, us(b.ValueAt)})
	}
	return l
}

// perfReport is all results of a run, as they come.
type perfReport struct {
	Device  string        `json:"device"`
	PathMTU int           `json:"path_mtu"`
	Results []*perfResult `json:"results"`

	table io.Writer // nil: none
}

func newPerfReport(n *node, c *perfCmd, e *env) *perfReport {
	r := &perfReport{Device: n.dev.Name() + " on " + n.host.NICs()[0].Name()}
	if port, err := n.dev.QueryPort(1); err == nil {
		r.PathMTU = port.ActiveMTU.Bytes()
	}
	if !c.JSON {
		r.table = e.stdout
	}
	return r
}

const perfRule = "---------------------------------------------------------------------------------------------------------------"

// add takes in a result, and prints its line: a table as perftest's, with a column more.
func (r *perfReport) add(row *perfResult) {
	var last *perfResult
	if n := len(r.Results); n > 0 {
		last = r.Results[n-1]
	}
	r.Results = append(r.Results, row)
	if r.table == nil {
		return
	}
	if last == nil || last.Over != row.Over || last.Metric != row.Metric {
		r.heading(row)
	}
	l := row.Latency
	if l == nil {
		l = &perfLatency{}
	}
	switch {
	case row.Operation == perfConnect:
		fmt.Fprintf(r.table, " %-13d %-13.0f %-13.2f %-15.2f %-13.2f %-21.2f %-.2f\n", row.Iterations, row.Mpps*1e6, l.Min,
			l.Typical, l.Max, l.P99, l.P999)
		return
	case row.Metric == perfLat:
		fmt.Fprintf(r.table, " %-9d %-13d %-13.2f %-13.2f %-15.2f %-13.2f %-13.2f %-21.2f %-.2f\n", row.Size, row.Iterations,
			l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P99, l.P999)
		return
	}
	fmt.Fprintf(r.table, " %-9d %-13d %-17.2f %-20.2f %-15.6f %-.3f\n", row.Size, row.Iterations, row.GbpsPeak, row.Gbps,
		row.Mpps, row.CPUPerGB)
}

// heading begins a table.
func (r *perfReport) heading(row *perfResult) {
	kind := "BW"
	if row.Metric == perfLat {
		kind = "Latency"
	}
	if row.Bidirectional {
		kind = "Bidirectional " + kind
	}
	if row.Operation == perfConnect {
		kind = "Rate"
	}
	fmt.Fprintf(r.table, "%s\n                    %s\n", perfRule, row.title(kind))
	fmt.Fprintf(r.table, " Device          : %s\n", r.Device)
	if row.Over == overRoCE {
		fmt.Fprintf(r.table, " Path MTU        : %d\n", r.PathMTU)
	}
	if row.Operation == perfConnect {
		fmt.Fprintf(r.table, " At a time       : %d\n%s\n", row.QPs, perfRule)
		fmt.Fprintln(r.table, " #connections  #/sec         t_min[usec]   t_typical[usec] t_max[usec]   99% percentile[usec]  99.9% percentile[usec]")
		return
	}
	fmt.Fprintf(r.table, " Number of qps   : %d\n TX depth        : %d\n%s\n", row.QPs, row.Depth, perfRule)
	if row.Metric == perfLat {
		fmt.Fprintln(r.table, " #bytes    #iterations   t_min[usec]   t_max[usec]   t_typical[usec] t_avg[usec]   t_stdev[usec] 99% percentile[usec]  99.9% percentile[usec]")
		return
	}
	fmt.Fprintln(r.table, " #bytes    #iterations   BW peak[Gb/sec]   BW average[Gb/sec]   MsgRate[Mpps]   CPU[sec/GB]")
}

// title is the heading of a table; TCP has no operations.
func (row *perfResult) title(kind string) string {
	if row.Over == overTCP || row.Over == overKernel {
		return row.Over + " " + kind + " Test"
	}
	if row.Operation == perfConnect {
		return fmt.Sprintf("Connection %s Test (%s)", kind, row.Over)
	}
	return fmt.Sprintf("%s %s Test (%s)", perfOps[row.Operation].title, kind, row.Over)
}

// finish writes what is not written line by line.
func (r *perfReport) finish(c *perfCmd, e *env) error {
	if c.Report != "" {
		if err := r.writePage(c); err != nil {
			return fmt.Errorf("--report: %w", err)
		}
	}
	if r.table != nil {
		if len(r.Results) > 0 {
			fmt.Fprintln(r.table, perfRule)
		}
		return nil
	}
	enc := json.NewEncoder(e.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
