package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
)

// result is the result of one measurement, a line of the table.
type result struct {
	Operation string `json:"operation"`
	Metric    string `json:"metric"`
	// RoCEv2, iWARP, TCP, kernel TCP, or "in process, direct".
	Over          string  `json:"over"`
	QPsOf         string  `json:"qp_transport,omitempty"` // protocol of the QPs, if there are QPs
	Size          int     `json:"message_size"`
	QPs           int     `json:"qps"`
	Depth         int     `json:"depth"`
	Bidirectional bool    `json:"bidirectional"`
	Iterations    int64   `json:"iterations"`
	Seconds       float64 `json:"seconds"`
	Gbps          float64 `json:"gbit_per_second"`
	GbpsPeak      float64 `json:"gbit_per_second_peak"`
	Mpps          float64 `json:"million_messages_per_second"`
	CPUPerGB      float64 `json:"cpu_seconds_per_gb"` // of this process
	// Of the other process, if there is one.
	PeerCPUPerGB float64 `json:"peer_cpu_seconds_per_gb,omitempty"`
	Verified     int64   `json:"verified,omitempty"`
	CPUSeconds   float64 `json:"cpu_seconds"`
	// Objects allocated by this process during the measurement.
	Mallocs uint64  `json:"allocations"`
	Allocs  float64 `json:"allocations_per_message"`
	// Of the other process, if there is one.
	PeerAllocs float64  `json:"peer_allocations_per_message,omitempty"`
	Latency    *latency `json:"latency_us,omitempty"`

	// With --loopback: the packets on the link between the nodes during the measurement, in both
	// directions (nil for the kernel's TCP), and the client's messages on the direct path.
	Packets *uint64 `json:"packets,omitempty"`
	Without uint64  `json:"messages_without_packets,omitempty"`
}

// latency has latencies in microseconds.
type latency struct {
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
	Typical float64 `json:"typical"` // the median
	Avg     float64 `json:"avg"`
	Stdev   float64 `json:"stdev"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p99_9"`
	// Distribution has latency percentiles.
	Distribution []percentile `json:"distribution"`
}

type percentile struct {
	Percent float64 `json:"percent"`
	Latency float64 `json:"us"`
}

// result returns the result of this side's messages.
func (s *side) result(cpu time.Duration, mallocs uint64) *result {
	p := s.plan
	r := &result{Operation: p.Op, Metric: p.Metric, Over: p.over(), Size: p.Size, QPs: p.QPs, Depth: p.Depth,
		Bidirectional: p.Bidirectional, CPUSeconds: cpu.Seconds(), Mallocs: mallocs}
	if !p.stream() {
		r.QPsOf = p.Over
	}
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
		r.Latency = newLatency(times)
	}
	if r.Seconds > 0 {
		r.Mpps = float64(r.Iterations) / r.Seconds / 1e6
	}
	r.Gbps = r.Mpps * float64(8*p.Size) / 1e3
	r.GbpsPeak = max(r.Gbps, peak*float64(8*p.Size)/1e9)
	return r
}

// merge adds the peer's measurements. shared means that both sides are in one process.
func (r *result) merge(peer *result, shared bool) {
	r.Verified += peer.Verified
	if r.Metric != metricLat {
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
	if r.Metric == metricLat && (r.Operation == opSend || r.Operation == opWrite) {
		gb *= 2 // the data is sent there and back
	}
	if gb == 0 {
		return
	}
	r.CPUPerGB = r.CPUSeconds / gb
	if !shared {
		r.PeerCPUPerGB = peer.CPUSeconds / gb
	}
}

// asSeenBy converts the client's result to the server's view. own has the server's measurements of
// its own process.
func (r *result) asSeenBy(own *result) {
	r.CPUSeconds, r.Mallocs = own.CPUSeconds, own.Mallocs
	r.CPUPerGB, r.PeerCPUPerGB = r.PeerCPUPerGB, r.CPUPerGB
	r.Allocs, r.PeerAllocs = r.PeerAllocs, r.Allocs
}

func newLatency(h *hdrhistogram.Histogram) *latency {
	us := func(ns int64) float64 { return float64(ns) / 1e3 }
	l := &latency{Min: us(h.Min()), Max: us(h.Max()), Typical: us(h.ValueAtPercentile(50)), Avg: h.Mean() / 1e3,
		Stdev: h.StdDev() / 1e3, P99: us(h.ValueAtPercentile(99)), P999: us(h.ValueAtPercentile(99.9))}
	for _, b := range h.CumulativeDistributionWithTicks(10) {
		l.Distribution = append(l.Distribution, percentile{b.Quantile, us(b.ValueAt)})
	}
	return l
}

// report has all results of a run.
type report struct {
	Device  string    `json:"device"` // of the first results
	PathMTU int       `json:"path_mtu"`
	Results []*result `json:"results"`

	// Error is the error of a failed measurement, after which there are no results.
	Error string `json:"error,omitempty"`

	device  string       // of the next results
	howElse string       // hint to measure other paths than direct
	table   io.Writer    // nil: none
	page    *output.File // nil: none
}

// newReport opens the file that finish writes.
func newReport(c *Command, e *cli.Env) (r *report, err error) {
	r = &report{}
	if !c.JSON {
		r.table = e.Text()
	}
	if !c.oneNode() {
		r.howElse = " (--packets has all go in packets)"
	}
	if c.Report != "" {
		if r.page, err = output.Open(c.Report); err != nil {
			return nil, fmt.Errorf("--report: %w", err)
		}
	}
	return r, nil
}

// on sets the node of the next results.
func (r *report) on(n *node.Node) {
	r.device = n.Dev.Name() + " on " + n.Name()
	if r.Device != "" {
		return
	}
	r.Device = r.device
	if port, err := n.Dev.QueryPort(1); err == nil {
		r.PathMTU = port.ActiveMTU.Bytes()
	}
}

const rule = "---------------------------------------------------------------------------------------------------------------"

// add adds a result and prints its line in a table like perftest's, with one more column.
func (r *report) add(row *result) {
	var last *result
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
		l = &latency{}
	}
	line := ""
	switch {
	case row.Operation == opConnect:
		line = fmt.Sprintf(" %-13d %-13.0f %-13.2f %-15.2f %-13.2f %-21.2f %-24.2f", row.Iterations, row.Mpps*1e6, l.Min,
			l.Typical, l.Max, l.P99, l.P999)
	case row.Metric == metricLat:
		line = fmt.Sprintf(" %-9d %-13d %-13.2f %-13.2f %-15.2f %-13.2f %-13.2f %-21.2f %-23.2f", row.Size, row.Iterations,
			l.Min, l.Max, l.Typical, l.Avg, l.Stdev, l.P99, l.P999)
	default:
		line = fmt.Sprintf(" %-9d %-13d %-17.2f %-20.2f %-15.6f %-12.3f", row.Size, row.Iterations, row.GbpsPeak, row.Gbps,
			row.Mpps, row.CPUPerGB)
	}
	if row.Packets != nil {
		line += fmt.Sprint(*row.Packets)
	}
	fmt.Fprintln(r.table, strings.TrimRight(line, " "))
}

// heading prints the heading of a table.
func (r *report) heading(row *result) {
	kind := "BW"
	if row.Metric == metricLat {
		kind = "Latency"
	}
	if row.Bidirectional {
		kind = "Bidirectional " + kind
	}
	if row.Operation == opConnect {
		kind = "Rate"
	}
	fmt.Fprintf(r.table, "%s\n                    %s\n", rule, row.title(kind))
	fmt.Fprintf(r.table, " Device          : %s\n", r.device)
	switch row.Over {
	case OverRoCE:
		fmt.Fprintf(r.table, " Path MTU        : %d\n", r.PathMTU)
	case OverNothing:
		fmt.Fprintf(r.table, " QPs             : %s%s\n", row.QPsOf, r.howElse)
	}
	if row.Operation == opConnect {
		fmt.Fprintf(r.table, " At a time       : %d\n", row.QPs)
	} else {
		fmt.Fprintf(r.table, " Number of qps   : %d\n TX depth        : %d\n", row.QPs, row.Depth)
	}
	fmt.Fprintln(r.table, rule)
	columns := " #bytes    #iterations   BW peak[Gb/sec]   BW average[Gb/sec]   MsgRate[Mpps]   CPU[sec/GB]"
	switch {
	case row.Operation == opConnect:
		columns = " #connections  #/sec         t_min[usec]   t_typical[usec] t_max[usec]   99% percentile[usec]  99.9% percentile[usec]"
	case row.Metric == metricLat:
		columns = " #bytes    #iterations   t_min[usec]   t_max[usec]   t_typical[usec] t_avg[usec]   t_stdev[usec] 99% " +
			"percentile[usec]  99.9% percentile[usec]"
	}
	if row.Packets != nil {
		columns += " #packets"
	}
	fmt.Fprintln(r.table, columns)
}

// title returns the title of a table. A stream has no operations.
func (row *result) title(kind string) string {
	if isStream(row.Over) {
		return row.Over + " " + kind + " Test"
	}
	if row.Operation == opConnect {
		return fmt.Sprintf("Connection %s Test (%s)", kind, row.Over)
	}
	return fmt.Sprintf("%s %s Test (%s)", operations[row.Operation].title, kind, row.Over)
}

// finish writes the results that are not written line by line. failed is the error of the failed
// measurement, or nil.
func (r *report) finish(c *Command, e *cli.Env, failed error) (err error) {
	if failed != nil {
		r.Error = strings.ReplaceAll(failed.Error(), "\n", "; ")
		if errors.Is(failed, context.Canceled) {
			r.Error = "interrupted"
		}
	}
	nothing := failed != nil && len(r.Results) == 0
	if r.page != nil {
		if nothing {
			err = r.page.Discard()
		} else {
			err = r.writePage(c)
		}
		if err != nil {
			err = fmt.Errorf("--report: %w", err)
		}
	}
	switch {
	case r.table != nil && len(r.Results) > 0:
		fmt.Fprintln(r.table, rule)
	case r.table == nil && !nothing:
		err = errors.Join(err, e.WriteJSON(r))
	}
	return err
}
