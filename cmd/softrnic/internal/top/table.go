package top

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/softrnic/softrnic/cmd/internal/status"
)

// row is a queue pair with its rates since the previous sample.
type row struct {
	pid    int
	qp     status.QP
	tx, rx float64 // bits per second
	pkts   float64 // per second, both ways
	busy   float64 // sort key
	once   bool    // there is only one sample: no rates
}

// key identifies a queue pair across samples.
type key struct {
	pid    int
	device string
	num    uint32
}

// rows returns the rows of two samples.
func rows(before, now []status.Node) []row {
	type past struct {
		node status.Node
		qp   status.QP
	}
	earlier := make(map[key]past)
	for _, n := range before {
		for _, q := range n.QPs {
			earlier[key{n.PID, n.Link, q.Num}] = past{n, q}
		}
	}
	var all []row
	for _, n := range now {
		for _, q := range n.QPs {
			r := row{pid: n.PID, qp: q, once: true}
			if was, ok := earlier[key{n.PID, n.Link, q.Num}]; ok {
				seconds := n.Time.Sub(was.node.Time).Seconds()
				r.once = seconds <= 0
				rate := func(names ...string) (sum float64) {
					for _, name := range names {
						if d := float64(q.Counters[name]) - float64(was.qp.Counters[name]); d > 0 && seconds > 0 {
							sum += d / seconds
						}
					}
					return sum
				}
				r.tx, r.rx = 8*rate("sent_bytes", "iwarp_xmit_bytes"), 8*rate("rcvd_bytes", "iwarp_rcv_bytes")
				r.pkts = rate("sent_pkts", "rcvd_pkts", "raw_sent_frames", "raw_rcvd_frames")
			}
			r.busy = r.tx + r.rx + r.pkts
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b row) int {
		return cmp.Or(cmp.Compare(b.busy, a.busy), cmp.Compare(a.pid, b.pid), cmp.Compare(a.qp.Num, b.qp.Num))
	})
	return all
}

// rate formats a rate.
func (r *row) rate(format string, v float64) string {
	if r.once {
		return "-"
	}
	return fmt.Sprintf(format, v)
}

// dispensable are the columns that are left out on a narrow screen, in this order.
var dispensable = []string{"PROTOCOL", "PEER'S QP", "TYPE", "PKT/s", "STATE", "PID"}

// renderTable renders the nodes and their queue pairs, the busiest first, for a screen of a width
// and height. 0 is unlimited.
func renderTable(before, now []status.Node, width, height int) string {
	var b strings.Builder
	lines := len(now)
	for _, n := range now {
		line := fmt.Sprintf("%d  %s  %s on %s  %d QP, %d CQ, %d MR", n.PID, strings.Join(n.Addrs, " "), n.Device, n.Link,
			n.Resources.QP, n.Resources.CQ, n.Resources.MR)
		fmt.Fprintln(&b, clip(line, width))
		if n.FaultsInjected > 0 || len(n.Faults) > 0 {
			var rules []string
			for _, f := range n.Faults {
				rules = append(rules, f.Rule)
			}
			line := fmt.Sprintf("%d  %d faults injected on purpose  %s", n.PID, n.FaultsInjected, strings.Join(rules, "; "))
			fmt.Fprintln(&b, clip(strings.TrimRight(line, " "), width))
			lines++
		}
	}
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Options = table.OptionsNoBordersAndSeparators
	t.Style().Format.Header = text.FormatDefault
	header := table.Row{"PID", "QP", "TYPE", "PROTOCOL", "STATE", "PEER", "PEER'S QP", "SQ", "RQ", "TX Mb/s", "RX Mb/s", "PKT/s", "RETRY",
		"RNR", "DUP"}
	t.AppendHeader(header)
	var columns []table.ColumnConfig
	for i := range header {
		c := table.ColumnConfig{Number: i + 1}
		if c.Number >= 8 {
			c.Align, c.AlignHeader = text.AlignRight, text.AlignRight
		}
		columns = append(columns, c)
	}
	shown := rows(before, now)
	if most := height - lines - 3; height > 0 && most > 0 && len(shown) > most {
		shown = shown[:most]
	}
	for _, r := range shown {
		c := r.qp.Counters
		dest := ""
		if r.qp.DestQPNum != 0 {
			dest = fmt.Sprintf("%#x", r.qp.DestQPNum)
		}
		t.AppendRow(table.Row{r.pid, fmt.Sprintf("%#x", r.qp.Num), r.qp.Type, r.qp.Transport, r.qp.State, r.qp.Peer,
			dest, r.qp.Sends, r.qp.Recvs,
			r.rate("%.1f", r.tx/1e6), r.rate("%.1f", r.rx/1e6), r.rate("%.0f", r.pkts),
			c["completer_retry_err"] + c["selective_repeats"], c["rcvd_rnr_err"], c["duplicate_request"]})
	}
	t.SetColumnConfigs(columns)
	rendered := t.Render()
	for _, name := range dispensable {
		if header, _, _ := strings.Cut(rendered, "\n"); width == 0 || text.StringWidthWithoutEscSequences(header) <= width {
			break
		}
		columns[slices.Index(header, any(name))].Hidden = true
		t.SetColumnConfigs(columns)
		rendered = t.Render()
	}
	for line := range strings.Lines(rendered) {
		fmt.Fprintln(&b, clip(strings.TrimRight(line, "\n"), width))
	}
	return b.String()
}

// clip truncates a line to a width. 0 is unlimited.
func clip(line string, width int) string {
	if width == 0 {
		return strings.TrimRight(line, " ")
	}
	return text.Trim(line, width)
}
