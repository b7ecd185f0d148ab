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
	Time time.Duration `default:"60ms" placeholder:"TIME" help:"How long to measure each latency and each throughput. Default: 60ms."`
	JSON bool          `name:"json" help:"Print the results as JSON."`

	linkFlags
}

// Help implements kong.HelpProvider.
func (*demoCmd) Help() string {
	return `Two nodes, each with its own IP stack and RDMA device, are joined by an Ethernet link inside this process. Node A posts every
kind of work request against node B's memory. All of the data is random and different in each message, and its SHA-256 at the
destination is compared with that at the source; the exit code is 1 if any message does not arrive as it was sent.

Over RoCEv2 and iWARP everything goes in packets, as between machines, and the packets on the link are counted, those of both
nodes. Nodes of one process can do without: "in process, direct" is a second pair of nodes, which copy messages from memory to
memory; no wire protocol is involved.

Latency is from posting to the completion at node A with one message outstanding (the median); throughput is with as many
outstanding as fit 8 MiB, at most 128. Over iWARP a SEND or WRITE completes as soon as TCP has it, so what is timed there
ends with the receive, or with a READ of no bytes behind the WRITE. --capture and --impair apply to node A's link, where there
are packets.`
}

// demoResult is one row of the table.
type demoResult struct {
	Operation string  `json:"operation"`
	Transport string  `json:"transport"` // or "in process, direct"
	Size      int     `json:"message_size"`
	Messages  int     `json:"messages"`
	Packets   uint64  `json:"packets"` // of both nodes
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
	pairs, err := newDemoPairs(e, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pairs.Close()) }()

	report := demoReport{PathMTU: pairs.wire.mtu.Bytes()}
	report.Results, err = c.runAll(ctx, pairs, newProgress(e.stderr, c.rows()))
	report.Verified = err == nil
	if c.JSON {
		enc := json.NewEncoder(e.stdout)
		enc.SetIndent("", "  ")
		return errors.Join(err, enc.Encode(report))
	}
	report.print(e.stdout)
	return err
}

// rows is the number of results that there will be.
func (c *demoCmd) rows() (n int) {
	for _, op := range demoOperations {
		n += len(demoWays) * len(op.sizes(c.Size))
	}
	return n
}

// demoWay is a group of columns of the table: how messages go.
type demoWay struct {
	name      string
	transport verbs.Transport // of the QPs
	direct    bool            // without packets
}

var demoWays = []demoWay{
	{overRoCE, verbs.RoCEv2, false},
	{overIWARP, verbs.IWARP, false},
	{overNothing, verbs.RoCEv2, true},
}

// runAll makes the table. It ends with the first row that fails, which is in the table too.
func (c *demoCmd) runAll(ctx context.Context, pairs *demoPairs, bar *progressbar.ProgressBar) (results []demoResult, err error) {
	defer func() { _ = bar.Exit() }()
	for _, op := range demoOperations {
		for _, size := range op.sizes(c.Size) {
			for _, way := range demoWays {
				what := fmt.Sprintf("%v, %s, %s", op.opcode, way.name, formatSize(size))
				bar.Describe(what)
				r, err := c.row(ctx, pairs, way, op, size)
				results = append(results, r)
				if err != nil {
					return results, fmt.Errorf("%s: %w", what, err)
				}
				_ = bar.Add(1)
			}
		}
	}
	return results, nil
}

func (c *demoCmd) row(ctx context.Context, pairs *demoPairs, way demoWay, op demoOperation, size int) (r demoResult, err error) {
	if op.missing(way.transport) {
		return demoResult{Operation: op.opcode.String(), Transport: way.name, Size: size, Missing: true}, nil
	}
	pair := pairs.of(way)
	before := pair.a.node.wire.packets.Load()
	r, err = pair.measure(ctx, way.transport, op, size, c.Time)
	r.Transport, r.Packets = way.name, pair.a.node.wire.packets.Load()-before
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
	for _, way := range demoWays {
		for _, column := range []string{"Packets each", "Gbit/s", "p50 latency"} {
			names, header = append(names, way.name), append(header, column)
			columns = append(columns, table.ColumnConfig{Number: len(header), Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t.AppendHeader(names, table.RowConfig{AutoMerge: true, AutoMergeAlign: text.AlignCenter})
	t.AppendHeader(header)
	t.SetColumnConfigs(columns)
	last := ""
	for results := range slices.Chunk(r.Results, len(demoWays)) {
		first := results[0]
		if last != "" && first.Operation != last {
			t.AppendSeparator()
		}
		last = first.Operation
		row := table.Row{first.Operation, formatSize(first.Size)}
		for _, result := range results {
			row = append(row, result.cells()...)
		}
		t.AppendRow(row)
	}
	t.Render()
	r.printTotals(w)
}

// printTotals says how much there was of everything.
func (r *demoReport) printTotals(w io.Writer) {
	if !r.Verified {
		return
	}
	for _, way := range demoWays {
		messages, packets := 0, uint64(0)
		for _, result := range r.Results {
			if result.Transport == way.name {
				messages += result.Verified
				packets += result.Packets
			}
		}
		of := ""
		if way.name == overRoCE {
			of = fmt.Sprintf(", path MTU %d", r.PathMTU)
		}
		fmt.Fprintf(w, "%-20s all %d messages verified, in %d packets%s\n", way.name+":", messages, packets, of)
	}
	fmt.Fprintln(w, "Direct is what nodes of one process do unless packets are forced: with pipe.FramesOnly, or in softrnic perf with --packets.")
}

// cells are a way's part of a row.
func (r *demoResult) cells() table.Row {
	switch {
	case r.Missing:
		return table.Row{"not in " + r.Transport, "-", "-"}
	case r.Error != "":
		return table.Row{"FAILED", fmt.Sprintf("%.3g", r.Gbps), fmt.Sprintf("%.1f µs", r.P50)}
	}
	each := float64(r.Packets) / float64(max(r.Messages, 1))
	return table.Row{fmt.Sprintf("%.2f", each), fmt.Sprintf("%.3g", r.Gbps), fmt.Sprintf("%.1f µs", r.P50)}
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
