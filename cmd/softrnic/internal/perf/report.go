package perf

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
)

//go:embed report.html
var page string

var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("report").Funcs(template.FuncMap{
		"bytes": output.Size,
		"unit":  func(v float64) string { return fmt.Sprintf("%.3g", v) },
	}).Parse(page))
})

// table has the rows of one metric over one protocol.
type table struct {
	Title   string
	Latency bool
	Counted bool // its rows have packet counts
	Rows    []tableRow
}

type tableRow struct {
	*result
	// Ratio is the ratio of the bandwidth or median latency to that of the stack's own TCP. It is
	// empty without TCP.
	Ratio string
}

// writePage writes the report as a self-contained page.
func (r *report) writePage(c *Command) error {
	bandwidth, err := r.plotBandwidth()
	if err != nil {
		return err
	}
	latency, err := r.plotLatency()
	if err != nil {
		return err
	}
	where := "between two machines' processes"
	if c.Loopback {
		where = "between two nodes in one process"
		if c.oneNode() {
			where = "between two QPs of one device"
		}
	}
	var page bytes.Buffer
	if err := pageTemplate().Execute(&page, map[string]any{
		"Style":     output.Style,
		"Operation": operations[c.Op].title,
		"Where":     where,
		"Device":    r.Device,
		"PathMTU":   r.PathMTU,
		"Command":   strings.Join(append([]string{"softrnic"}, c.line...), " "),
		"Version":   cli.Version(),
		"CPUs":      runtime.GOMAXPROCS(0),
		"Date":      time.Now().Format(time.DateTime),
		"Loopback":  c.Loopback,
		"Verified":  c.Verify,
		"Bandwidth": bandwidth,
		"Latency":   latency,
		"Tables":    r.tables(),
		"Error":     r.Error,
		"Direct":    r.direct(),
	}); err != nil {
		return err
	}
	return r.page.Replace(page.Bytes())
}

// tables returns the results, grouped as measured.
func (r *report) tables() (all []table) {
	for i, row := range r.Results {
		if i == 0 || r.Results[i-1].Over != row.Over || r.Results[i-1].Metric != row.Metric {
			t := table{Title: row.Over + " bandwidth", Latency: row.Metric == metricLat, Counted: row.Packets != nil}
			if t.Latency {
				t.Title = row.Over + " latency"
			}
			all = append(all, t)
		}
		t := &all[len(all)-1]
		t.Rows = append(t.Rows, tableRow{row, r.ratio(row)})
	}
	return all
}

// ratio compares a row with the row of the stack's TCP.
func (r *report) ratio(row *result) string {
	for _, o := range r.Results {
		switch {
		case o.Over != overTCP || o.Metric != row.Metric || o.Size != row.Size || o == row:
		case row.Metric != metricLat && o.Gbps > 0:
			return fmt.Sprintf("%.2f", row.Gbps/o.Gbps)
		case row.Latency != nil && o.Latency != nil && o.Latency.Typical > 0:
			return fmt.Sprintf("%.2f", row.Latency.Typical/o.Latency.Typical)
		}
	}
	return ""
}
