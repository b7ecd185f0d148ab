package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"text/tabwriter"
)

// filter selects packets.
type filter struct {
	qps      []uint32
	from, to int64 // nanoseconds
	numbers  [2]int
}

// inTime reports whether a packet is in the selected time.
func (t *filter) inTime(e *event) bool {
	if e.time < t.from || t.to > 0 && e.time > t.to {
		return false
	}
	if t.numbers[0] == 0 {
		t.numbers[0] = e.number
	}
	t.numbers[1] = e.number
	return true
}

// in reports whether a packet is selected.
func (t *filter) in(e *event) bool {
	if len(t.qps) == 0 {
		return true
	}
	for _, q := range t.qps {
		switch {
		case e.roce && (e.qp == q || e.knownFrom && e.from == q),
			e.exchange != nil && (e.exchange.activeQP == q || e.exchange.passiveQP == q),
			e.stream != nil && (uint32(e.sport) == q || uint32(e.dport) == q):
			return true
		}
	}
	return false
}

func (t *filter) late(w *flow, f finding) bool {
	if f.Packet < t.numbers[0] || t.numbers[1] != 0 && f.Packet > t.numbers[1] {
		return false
	}
	if len(t.qps) == 0 {
		return true
	}
	for _, q := range t.qps {
		if w != nil && (w.qp == q || w.peer != nil && w.peer.qp == q) {
			return true
		}
	}
	return w == nil
}

// printer writes the results of an analysis, as lines or as JSON.
type printer struct {
	out     *bufio.Writer
	filter  filter
	packets bool // print a line for each packet, not only for those with findings
	json    bool
	chart   *charts // nil without a ladder
	rows    []row
	hidden  int          // number of rows that are not kept
	flush   func() error // called after each line; nil: flush only at the end
}

// maxStatistics is the most directions with a row at the end.
const maxStatistics = 1 << 12

func (p *printer) count(a *analysis, f finding) {
	switch f.Level {
	case wrong:
		a.counts.Wrong++
		if f.damage {
			a.counts.damaged++
		}
	case doubtful:
		a.counts.Doubtful++
	}
}

func (p *printer) packet(a *analysis, e *event) {
	wanted := len(e.findings) > 0 || e.shown && (p.packets || p.chart != nil)
	if !wanted || !p.filter.inTime(e) || !p.filter.in(e) {
		return
	}
	for _, f := range e.findings {
		p.count(a, f)
	}
	if p.chart != nil {
		p.chart.add(e)
	}
	if !p.packets && len(e.findings) == 0 {
		return
	}
	if p.json {
		p.encode(e)
	} else {
		p.line(e)
	}
	if p.flush != nil {
		_ = p.flush() // bufio keeps the error
	}
}

func (p *printer) late(a *analysis, w *flow, f finding) {
	if !p.filter.late(w, f) {
		return
	}
	p.count(a, f)
	if p.chart != nil {
		p.chart.late(f)
	}
	if w != nil {
		f.Text += " (" + w.String() + ")"
	}
	if p.json {
		_ = json.NewEncoder(p.out).Encode(struct {
			Finding finding `json:"finding"`
		}{f}) // bufio keeps the error
		return
	}
	fmt.Fprintf(p.out, "      %v packet %d: %s\n", f.Level, f.Packet, f.Text)
}

// line writes the line of a packet.
func (p *printer) line(e *event) {
	w := p.out
	if e.missing != "" {
		fmt.Fprintf(w, "      %s missing\n", e.missing)
	}
	fmt.Fprintf(w, "%6d %.6f ", e.number, float64(e.time)/1e9)
	switch {
	case !e.src.IsValid():
		fmt.Fprint(w, "a packet of another protocol")
	case e.roce && e.knownFrom:
		fmt.Fprintf(w, "%v > %v QP %#x > %#x", e.src, e.dst, e.from, e.qp)
	case e.roce:
		fmt.Fprintf(w, "%v > %v QP %#x", e.src, e.dst, e.qp)
	default:
		fmt.Fprintf(w, "%v > %v", netip.AddrPortFrom(e.src, e.sport), netip.AddrPortFrom(e.dst, e.dport))
	}
	if e.roce && e.operation != "" {
		fmt.Fprintf(w, " PSN %d", e.psn)
	}
	if e.operation != "" {
		fmt.Fprintf(w, " %s", e.operation)
	}
	if e.roce && e.message > 0 {
		fmt.Fprintf(w, ", message %d packet %d", e.message, e.place)
	}
	if e.bytes > 0 && e.class != management {
		fmt.Fprintf(w, ", %d bytes", e.bytes)
	}
	if e.about != "" {
		fmt.Fprintf(w, ", %s", e.about)
	}
	if e.upper != "" {
		fmt.Fprintf(w, ", %s", e.upper)
	}
	if r := e.remark(); r != "" {
		fmt.Fprintf(w, ", %s", r)
	}
	fmt.Fprintln(w)
	for _, f := range e.findings {
		fmt.Fprintf(w, "      %v packet %d: %s\n", f.Level, f.Packet, f.Text)
	}
}

// remark returns which packet a packet answers or retransmits.
func (e *event) remark() string {
	s := ""
	if e.answers > 0 {
		s = fmt.Sprintf("answers %d after %v", e.answers, since(e.since))
	}
	if e.repeats > 0 {
		s = join(s, fmt.Sprintf("repeats %d", e.repeats))
	}
	if e.why != "" {
		if e.repeats > 0 {
			s += " " + e.why
		} else {
			s = join(s, e.why)
		}
	}
	return s
}

// encode writes a packet as a line of JSON.
func (p *printer) encode(e *event) {
	type packet struct {
		Number    int        `json:"number"`
		Time      float64    `json:"time"`
		Src       netip.Addr `json:"src"`
		Dst       netip.Addr `json:"dst"`
		SrcPort   uint16     `json:"src_port,omitempty"`
		DstPort   uint16     `json:"dst_port,omitempty"`
		Protocol  string     `json:"protocol"`
		SrcQP     *uint32    `json:"src_qp,omitempty"`
		QP        *uint32    `json:"qp,omitempty"`
		PSN       *uint32    `json:"psn,omitempty"`
		Operation string     `json:"operation"`
		Class     string     `json:"class"`
		Message   uint32     `json:"message,omitempty"`
		Place     uint32     `json:"place,omitempty"`
		Bytes     int        `json:"bytes"`
		About     string     `json:"about,omitempty"`
		Upper     string     `json:"upper,omitempty"`
		Answers   int        `json:"answers,omitempty"`
		Since     float64    `json:"since,omitempty"`
		Repeats   int        `json:"repeats,omitempty"`
		Why       string     `json:"why,omitempty"`
		Missing   string     `json:"missing,omitempty"`
		Findings  []finding  `json:"findings,omitempty"`
	}
	v := packet{Number: e.number, Time: float64(e.time) / 1e9, Src: e.src, Dst: e.dst, SrcPort: e.sport, DstPort: e.dport,
		Protocol:  "other",
		Operation: e.operation, Class: classNames[e.class], Message: e.message, Place: e.place, Bytes: e.bytes, About: e.about, Upper: e.upper,
		Answers: e.answers, Since: float64(e.since) / 1e9, Repeats: e.repeats, Why: e.why, Missing: e.missing, Findings: e.findings}
	if e.roce {
		v.Protocol, v.QP, v.PSN = "roce", &e.qp, &e.psn
		if e.knownFrom {
			v.SrcQP = &e.from
		}
	} else if e.stream != nil {
		v.Protocol = "tcp"
		if e.stream.iwarp {
			v.Protocol = "iwarp"
		}
	}
	_ = json.NewEncoder(p.out).Encode(v) // bufio keeps the error
}

// row has the statistics of one direction of a connection.
type row struct {
	Connection string  `json:"connection"`
	Packets    uint64  `json:"packets"`
	Messages   uint64  `json:"messages"`
	Bytes      uint64  `json:"bytes"`
	Gbits      float64 `json:"gbit_per_second"`
	Repeated   uint64  `json:"repeated"`
	Lost       uint64  `json:"lost"`
	NAKs       uint64  `json:"naks"`
	RNRs       uint64  `json:"rnr_naks"`
	Timeouts   uint64  `json:"timeouts"`
	Shortest   float64 `json:"rtt_min,omitempty"` // seconds
	Median     float64 `json:"rtt_p50,omitempty"`
	High       float64 `json:"rtt_p99,omitempty"`
}

func rowOf(name string, s *statistics, ns int64) row {
	r := row{Connection: name, Packets: s.Packets, Messages: s.Messages, Bytes: s.Bytes, Gbits: gbits(s.Bytes, ns), Repeated: s.Repeated,
		Lost: s.Lost, NAKs: s.NAKs, RNRs: s.RNRs, Timeouts: s.Timeouts}
	if s.trips != nil {
		r.Shortest, r.Median, r.High = float64(s.shortest)/1e9, s.trip(50).Seconds(), s.trip(99).Seconds()
	}
	return r
}

func (p *printer) keep(r row) {
	if len(p.rows) < maxStatistics {
		p.rows = append(p.rows, r)
	} else {
		p.hidden++
	}
}

func (p *printer) statistics(_ *analysis, w *flow) {
	if w.stats.Packets == 0 || len(p.filter.qps) > 0 && !p.filter.late(w, finding{Packet: p.filter.numbers[1]}) {
		return
	}
	p.keep(rowOf(w.String(), &w.stats, w.last-w.first))
}

func (p *printer) streamStatistics(_ *analysis, s *stream) {
	for side := range s.half {
		h := &s.half[side]
		from, to := s.ends(side)
		p.keep(rowOf(fmt.Sprintf("iWARP %v to %v", from, to), &h.stats, h.lastTime-h.first))
	}
}

// summary writes the counts and the statistics.
func (p *printer) summary(a *analysis) {
	c := &a.counts
	if p.json {
		_ = json.NewEncoder(p.out).Encode(struct {
			Counts     counts `json:"counts"`
			NotRDMA    tally  `json:"not_rdma"`
			LeftOut    tally  `json:"left_out"`
			Statistics []row  `json:"statistics"`
		}{*c, a.rules[0], a.rules[1], p.rows}) // bufio keeps the error
		return
	}
	w := p.out
	if len(p.rows) > 0 {
		table(w, p.rows)
		if p.hidden > 0 {
			fmt.Fprintf(w, "and %d directions more\n", p.hidden)
		}
	}
	fmt.Fprintf(w, "%d packets: %d RoCE, %d iWARP, %d other TCP, %d others", c.Packets, c.RoCE, c.IWARP, c.TCP, c.Other)
	for _, some := range []struct {
		n      int
		format string
	}{
		{c.Unchecked, "; %d could not be checked completely (cut, IP options)"},
		{c.Elsewhere, "; %d were seen before, at another point of the capture"},
		{c.Offloaded, "; the checksums of %d were left to the interface"},
		{c.Superframes, "; %d frames had several RoCE packets"},
		{c.Cut, ", of which %d were cut"},
		{c.Reordered, "; %d packets were reordered"},
		{c.Dropped, "; the capture dropped %d: missing ones are not the peers' fault"},
	} {
		if some.n > 0 {
			fmt.Fprintf(w, some.format, some.n)
		}
	}
	fmt.Fprintln(w)
	if len(a.rules[0]) > 0 {
		fmt.Fprintf(w, "not RDMA: %v\n", a.rules[0])
	}
	if len(a.rules[1]) > 0 {
		fmt.Fprintf(w, "LEFT OUT: %v\n", a.rules[1])
	}
	switch {
	case c.Wrong+c.Doubtful > 0:
		fmt.Fprintf(w, "%d wrong, %d doubtful\n", c.Wrong, c.Doubtful)
	case c.leftOut() > 0:
		fmt.Fprintln(w, "nothing is wrong in what was checked")
	default:
		fmt.Fprintln(w, "nothing is wrong")
	}
}

func table(out io.Writer, rows []row) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\npackets\tmessages\tbytes\tGbit/s\trepeated\tlost\tNAK\tRNR\ttimeouts\tround trip: least\tmedian\t99 %\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%d\t%d\t%d\t%.3g\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\n", r.Packets, r.Messages, r.Bytes, r.Gbits, r.Repeated,
			r.Lost,
			r.NAKs, r.RNRs, r.Timeouts, seconds(r.Shortest), seconds(r.Median), seconds(r.High), r.Connection)
	}
	_ = w.Flush() // bufio keeps the error
}

func seconds(s float64) string {
	if s == 0 {
		return "-"
	}
	return since(int64(s * 1e9)).String()
}
