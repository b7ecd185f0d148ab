package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/softrnic/softrnic/verbs"
)

// demoCmd runs every operation between two nodes.
type demoCmd struct {
	Size []int         `short:"s" placeholder:"BYTES" help:"Message size; repeatable. Atomics are always 8 bytes. Default: 8, 4096, 65536 and 1048576."`
	Time time.Duration `default:"60ms" help:"How long to measure each latency and each throughput. Default: 60ms."`
	JSON bool          `name:"json" help:"Print the results as JSON."`

	linkFlags
}

// Help implements kong.HelpProvider.
func (*demoCmd) Help() string {
	return `Two nodes, each with its own IP stack and RDMA device, are joined by an Ethernet link inside this process. Node A posts every
kind of work request against node B's memory. All of the data is random and different in each message, and its SHA-256 at the
destination is compared with that at the source; the exit code is 1 if any message does not arrive as it was sent.

Latency is from posting to the completion at node A with one message outstanding (the median); throughput is with as many
outstanding as fit 8 MiB, at most 128. Over iWARP a SEND or WRITE completes as soon as TCP has it, so what is timed there
ends with the receive, or with a READ of no bytes behind the WRITE. --capture and --impair apply to node A's link.`
}

// demoResult is one row of the table.
type demoResult struct {
	Operation string  `json:"operation"`
	Transport string  `json:"transport"`
	Size      int     `json:"message_size"`
	Messages  int     `json:"messages"`
	Verified  int     `json:"verified"`
	Gbps      float64 `json:"gbit_per_second"`
	P50       float64 `json:"latency_p50_us"`
	Missing   bool    `json:"missing,omitempty"` // the protocol does not have the operation
	Error     string  `json:"error,omitempty"`
}

// demoReport is the --json output.
type demoReport struct {
	PathMTU  int          `json:"path_mtu"`
	Results  []demoResult `json:"results"`
	Verified bool         `json:"verified"` // everything
}

// Validate implements kong's check after parsing.
func (c *demoCmd) Validate() error {
	for _, n := range c.Size {
		if n < 0 || n > 1<<28 {
			return fmt.Errorf("--size %d: give 0 to %d", n, 1<<28)
		}
	}
	if c.Time < 0 || c.Time > time.Hour {
		return fmt.Errorf("--time %v: give 0 to 1h", c.Time)
	}
	return nil
}

// Run runs the demo.
func (c *demoCmd) Run(ctx context.Context, e *env) (err error) {
	if len(c.Size) == 0 {
		c.Size = []int{8, 4 << 10, 64 << 10, 1 << 20}
	}
	pair, err := newDemoPair(e, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pair.Close()) }()

	report := demoReport{PathMTU: pair.mtu.Bytes()}
	report.Results, err = c.runAll(ctx, pair, newProgress(e.stderr, c.rows()))
	report.Verified = err == nil
	if c.JSON {
		enc := json.NewEncoder(e.stdout)
		enc.SetIndent("", "  ")
		return errors.Join(err, enc.Encode(report))
	}
	report.print(e.stdout)
	return err
}

// rows is the number of rows that the table will have.
func (c *demoCmd) rows() (n int) {
	for _, op := range demoOperations {
		n += len(demoTransports) * len(op.sizes(c.Size))
	}
	return n
}

// demoTransports are the columns of the table.
var demoTransports = []verbs.Transport{verbs.RoCEv2, verbs.IWARP}

// runAll makes the table. It ends with the first row that fails, which is in the table too.
func (c *demoCmd) runAll(ctx context.Context, pair *demoPair, bar *progressbar.ProgressBar) (results []demoResult, err error) {
	defer func() { _ = bar.Exit() }()
	for _, op := range demoOperations {
		for _, size := range op.sizes(c.Size) {
			for _, t := range demoTransports {
				bar.Describe(fmt.Sprintf("%v over %v, %s", op.opcode, t, formatSize(size)))
				r, err := c.row(ctx, pair, t, op, size)
				results = append(results, r)
				if err != nil {
					return results, fmt.Errorf("%v over %v of %s: %w", op.opcode, t, formatSize(size), err)
				}
				_ = bar.Add(1)
			}
		}
	}
	return results, nil
}

func (c *demoCmd) row(ctx context.Context, pair *demoPair, t verbs.Transport, op demoOperation, size int) (demoResult, error) {
	if op.missing(t) {
		return demoResult{Operation: op.opcode.String(), Transport: t.String(), Size: size, Missing: true}, nil
	}
	r, err := pair.measure(ctx, t, op, size, c.Time)
	if err == nil && r.Verified != r.Messages {
		err = fmt.Errorf("%d of %d messages did not arrive as they were sent", r.Messages-r.Verified, r.Messages)
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r, err
}

func (r *demoReport) print(w io.Writer) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	names, header := table.Row{"", ""}, table.Row{"Operation", "Message size"}
	columns := []table.ColumnConfig{{Number: 2, Align: text.AlignRight}}
	for i, transport := range demoTransports {
		for j, column := range []string{"Messages", "Verified", "Gbit/s", "p50 latency"} {
			names, header = append(names, transport.String()), append(header, column)
			columns = append(columns, table.ColumnConfig{Number: 3 + 4*i + j, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t.AppendHeader(names, table.RowConfig{AutoMerge: true, AutoMergeAlign: text.AlignCenter})
	t.AppendHeader(header)
	t.SetColumnConfigs(columns)
	total, last := 0, ""
	for results := range slices.Chunk(r.Results, len(demoTransports)) {
		first := results[0]
		if last != "" && first.Operation != last {
			t.AppendSeparator()
		}
		last = first.Operation
		row := table.Row{first.Operation, formatSize(first.Size)}
		for _, result := range results {
			total += result.Verified
			row = append(row, result.cells()...)
		}
		t.AppendRow(row)
	}
	t.Render()
	if r.Verified {
		fmt.Fprintf(w, "Reliable connections on one device, PD and CQ, RoCEv2 with path MTU %d: all %d messages verified.\n", r.PathMTU, total)
	}
}

// cells are a transport's part of a row.
func (r *demoResult) cells() table.Row {
	if r.Missing {
		return table.Row{"-", "not in " + r.Transport, "-", "-"}
	}
	verified := "all"
	if r.Error != "" {
		verified = fmt.Sprintf("%d: FAILED", r.Verified)
	}
	return table.Row{r.Messages, verified, fmt.Sprintf("%.3g", r.Gbps), fmt.Sprintf("%.1f µs", r.P50)}
}

// newProgress makes a progress bar that shows only on a terminal.
func newProgress(w io.Writer, steps int) *progressbar.ProgressBar {
	f, ok := w.(*os.File)
	visible := ok && term.IsTerminal(int(f.Fd()))
	return progressbar.NewOptions(steps, progressbar.OptionSetWriter(w), progressbar.OptionSetVisibility(visible),
		progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(), progressbar.OptionSetElapsedTime(false),
		progressbar.OptionSetPredictTime(false), progressbar.OptionShowCount())
}

// formatSize writes n bytes in the largest unit that divides it.
func formatSize(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
