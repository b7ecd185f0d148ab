package fabric

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
	network "github.com/softrnic/softrnic/link/fabric"
)

//go:embed report.html
var page string

var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("report").Funcs(template.FuncMap{
		"unit":    func(v float64) string { return fmt.Sprintf("%.3g", v) },
		"percent": func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) },
		"time":    func(us float64) string { return micros(us).String() },
		"bytes":   formatBytes,
	}).Parse(page))
})

// formatBytes returns a number of bytes with three digits and a unit.
func formatBytes(v any) string {
	var n float64
	if _, err := fmt.Sscan(fmt.Sprint(v), &n); err != nil {
		return fmt.Sprint(v)
	}
	for _, u := range []struct {
		size float64
		name string
	}{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= u.size {
			return fmt.Sprintf("%.3g %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%.0f B", n)
}

// portRow is a port of the report.
type portRow struct {
	Name     string
	Used     float64 // share of the cable's rate
	Counters network.PortCounters
}

// sizeRow is about flows up to a size that are longer than those of the row before.
type sizeRow struct {
	Size          int64
	Flows         int
	FCT, Slowdown percentiles
}

// shown is the number of rows that tables have of ports and switches.
const shown = 16

// used returns the share of a cable's rate that a port has used.
func (r *run) used(p *network.Port) float64 {
	if t := r.now().Seconds(); t > 0 {
		return float64(p.Counters().Bytes) * 8 / p.Rate() / t
	}
	return 0
}

// sizes divides the flows by size into at most n rows, each with as many flows, or one for each
// size if these are few.
func (s *summary) sizes(n int) (all []sizeRow) {
	rows := slices.Clone(s.rows)
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.bytes, b.bytes) })
	distinct := 0
	for i := range rows {
		if i == 0 || rows[i].bytes != rows[i-1].bytes {
			distinct++
		}
	}
	least := len(rows) / n
	if distinct <= n {
		least = 1
	}
	for from := 0; from < len(rows); {
		to := min(from+max(1, least), len(rows))
		for to < len(rows) && rows[to].bytes == rows[to-1].bytes {
			to++
		}
		var fct, slow []float64
		for i := from; i < to; i++ {
			fct, slow = append(fct, micro(rows[i].fct)), append(slow, rows[i].slowdown())
		}
		all = append(all, sizeRow{rows[to-1].bytes, to - from, percentilesOf(fct), percentilesOf(slow)})
		from = to
	}
	return all
}

// writePage writes the report.
func (c *Run) writePage(b *bytes.Buffer, r *run, s *summary) error {
	sizes := s.sizes(20)
	slowdown, title, err := s.plotSlowdown(sizes)
	if err != nil {
		return err
	}
	queues, err := r.plotQueues(r.bins(queueBins))
	if err != nil {
		return err
	}
	rates, goodput, many, err := r.plotRates(r.bins(rateBins))
	if err != nil {
		return err
	}
	var ports []portRow
	for _, p := range r.ports {
		ports = append(ports, portRow{portName(p), r.used(p), p.Counters()})
	}
	slices.SortStableFunc(ports, func(a, b portRow) int { return cmp.Compare(b.Used, a.Used) })
	uneven := slices.Clone(s.Imbalance)
	slices.SortStableFunc(uneven, func(a, b imbalance) int { return cmp.Compare(b.Excess, a.Excess) })
	return pageTemplate().Execute(b, map[string]any{
		"Style": output.Style, "S": s, "Version": cli.Version(), "Command": c.commandLine(), "Network": r.cfg.describe(),
		"RDMA": r.cfg.RDMA.describe(), "Failures": r.cfg.Failures, "Picture": r.picture(), "Slowdown": slowdown, "SlowdownTitle": title,
		"Queues": queues, "Rates": rates, "Goodput": goodput, "Many": many,
		"QueueBin": micro(r.bins(queueBins).width), "RateBin": micro(r.bins(rateBins).width), "Sizes": sizes,
		"Ports": ports[:min(shown, len(ports))], "Imbalance": uneven[:min(shown, len(uneven))],
	})
}

// commandLine returns the flags that matter for the result.
func (c *Run) commandLine() string {
	line := "softrnic fabric run"
	add := func(flag string, values ...string) {
		for _, v := range values {
			line += " " + flag + " " + v
		}
	}
	if c.File != "" {
		line += " " + c.File
	}
	if c.Topology != "" {
		add("--topology", c.Topology)
	}
	add("--workload", c.Workload...)
	add("--failure", c.Failure...)
	add("--set", c.Set...)
	if c.Seed != nil {
		add("--seed", fmt.Sprint(*c.Seed))
	}
	if c.Until != nil {
		add("--until", *c.Until)
	}
	if c.Verify {
		line += " --verify"
	}
	return line
}

// describe says what the switches and cables do.
func (c *config) describe() string {
	text := fmt.Sprintf("%v Gbit/s, %v; ECMP by %s", float64(c.Link.Rate)/1e9, time.Duration(c.Link.Delay), c.Switch.ECMP)
	if t := &c.Topology; t.UplinkRate != 0 {
		text += fmt.Sprintf("; %v Gbit/s between switches", float64(t.UplinkRate)/1e9)
	}
	if c.Switch.Buffer > 0 {
		text += "; buffer " + formatBytes(int64(c.Switch.Buffer))
	}
	if c.Switch.Queue > 0 {
		text += "; queue " + formatBytes(int64(c.Switch.Queue))
	}
	if e := c.Switch.ECN; e != nil {
		text += fmt.Sprintf("; ECN from %s to %s with %g", formatBytes(int64(e.Min)), formatBytes(int64(e.Max)), e.P)
		if e.AtDeparture {
			text += ", at departure"
		}
	}
	if p := c.Switch.PFC; p != nil {
		text += fmt.Sprintf("; PFC from %s on", formatBytes(int64(p.Xoff)))
	}
	return text
}

// describe says what the devices do.
func (c *rdmaConfig) describe() string {
	parts := []string{fmt.Sprintf("path MTU %d", c.MTU), fmt.Sprintf("messages of %s", formatBytes(int64(c.Message)))}
	if c.QPs > 1 {
		parts = append(parts, fmt.Sprintf("%d QPs", c.QPs))
	}
	if c.Window > 0 {
		parts = append(parts, "window "+formatBytes(int64(c.Window)))
	}
	for _, f := range []struct {
		on   bool
		name string
	}{{c.DCQCN.on(), "DCQCN"}, {c.ByDelay, "congestion control by delay"}, {c.SelectiveRepeat, "selective repeat"},
		{!c.SelectiveRepeat, "go-back-N"}} {
		if f.on {
			parts = append(parts, f.name)
		}
	}
	return strings.Join(parts, ", ")
}

// String says what happens.
func (e failure) String() string {
	text := fmt.Sprintf("at %v: %s of %s", time.Duration(e.At), e.Kind, e.Node)
	if e.Peer != "" {
		text += " to " + e.Peer
	}
	switch {
	case e.Share > 0:
		text += fmt.Sprintf(", %g of the rate", e.Share)
	case e.Rate > 0:
		text += fmt.Sprintf(", rate %g", e.Rate)
	}
	if e.For > 0 {
		text += fmt.Sprintf(", for %v", time.Duration(e.For))
	}
	return text
}
