package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
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
outstanding as fit 8 MiB, at most 128. --capture and --impair apply to node A's link.`
}

// demoResult is one row of the table.
type demoResult struct {
	Operation string  `json:"operation"`
	Size      int     `json:"message_size"`
	Messages  int     `json:"messages"`
	Verified  int     `json:"verified"`
	Gbps      float64 `json:"gbit_per_second"`
	P50       float64 `json:"latency_p50_us"`
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
		n += len(op.sizes(c.Size))
	}
	return n
}

// runAll makes the table. It ends with the first row that fails, which is in the table too.
func (c *demoCmd) runAll(ctx context.Context, pair *demoPair, bar *progressbar.ProgressBar) (results []demoResult, err error) {
	defer func() { _ = bar.Exit() }()
	for _, op := range demoOperations {
		for _, size := range op.sizes(c.Size) {
			bar.Describe(fmt.Sprintf("%v, %s", op.opcode, formatSize(size)))
			r, err := pair.measure(ctx, op, size, c.Time)
			if err == nil && r.Verified != r.Messages {
				err = fmt.Errorf("%d of %d messages did not arrive as they were sent", r.Messages-r.Verified, r.Messages)
			}
			if err != nil {
				r.Error = err.Error()
				return append(results, r), fmt.Errorf("%v of %s: %w", op.opcode, formatSize(size), err)
			}
			results = append(results, r)
			_ = bar.Add(1)
		}
	}
	return results, nil
}

func (r *demoReport) print(w io.Writer) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(table.Row{"Operation", "Message size", "Messages", "Verified", "Gbit/s", "p50 latency"})
	t.SetColumnConfigs([]table.ColumnConfig{
		{Number: 2, Align: text.AlignRight}, {Number: 3, Align: text.AlignRight}, {Number: 4, Align: text.AlignRight},
		{Number: 5, Align: text.AlignRight}, {Number: 6, Align: text.AlignRight},
	})
	total, last := 0, ""
	for i, row := range r.Results {
		total += row.Verified
		if i > 0 && row.Operation != last {
			t.AppendSeparator()
		}
		last = row.Operation
		verified := "all"
		if row.Error != "" {
			verified = fmt.Sprintf("%d: FAILED", row.Verified)
		}
		t.AppendRow(table.Row{row.Operation, formatSize(row.Size), row.Messages, verified,
			fmt.Sprintf("%.3g", row.Gbps), fmt.Sprintf("%.1f µs", row.P50)})
	}
	t.Render()
	if r.Verified {
		fmt.Fprintf(w, "RoCEv2 reliable connection, path MTU %d: all %d messages verified.\n", r.PathMTU, total)
	}
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
