// Package demo is `softrnic demo`: it runs every RDMA operation between two nodes of this process
// and verifies the data.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/schollz/progressbar/v3"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/perf"
)

// Command runs every operation between two nodes.
type Command struct {
	Size []int         `short:"s" placeholder:"BYTES" help:"Message size; repeatable. Atomics are always 8 bytes. Default: 8, 4096, 65536 and 1048576."`
	Time time.Duration `default:"20ms" placeholder:"TIME" help:"How long to measure each latency and each throughput. Default: 20ms."`
	JSON bool          `name:"json" help:"Print the results as JSON."`

	node.LinkFlags
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `Two nodes, each with its own IP stack and RDMA device, are connected by an Ethernet link inside this process. Node A posts every
kind of work request against node B's memory. Each message has different random data, and its SHA-256 at the destination is
compared with that at the source. The exit code is 1 if a message does not arrive as it was sent.

Over RoCEv2 and iWARP all messages go in packets, as between machines, and the packets of both nodes are counted. Nodes of
one process do not need packets: "in process, direct" is a second pair of nodes, which copies messages from memory to memory
without a wire protocol.

Latency is the median time from posting to the completion at node A, with one message outstanding. Throughput is with 8 MiB
outstanding, in at most 128 messages. Over iWARP, a SEND or WRITE completes as soon as TCP has accepted it. The latency of a
SEND therefore ends with the receive, and that of a WRITE with a READ of no bytes after it. --capture and --impair apply to
node A's link, and thus only to packets.`
}

// result is one row of the table.
type result struct {
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

// report is the --json output.
type report struct {
	PathMTU  int      `json:"path_mtu"`
	Results  []result `json:"results"`
	Verified bool     `json:"verified"` // all data is correct
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	for _, n := range c.Size {
		if n < 0 || n > 1<<28 {
			return fmt.Errorf("--size %d: must be 0 to %d", n, 1<<28)
		}
	}
	if c.Time < 0 || c.Time > time.Hour {
		return fmt.Errorf("--time %v: must be 0 to 1h", c.Time)
	}
	return nil
}

// Run runs the demo.
func (c *Command) Run(ctx context.Context, e *cli.Env) (err error) {
	if len(c.Size) == 0 {
		c.Size = []int{8, 4 << 10, 64 << 10, 1 << 20}
	}
	pairs, err := newPairs(e, c)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pairs.Close()) }()

	report := report{PathMTU: pairs.wire.mtu.Bytes()}
	report.Results, err = c.runAll(ctx, pairs, output.NewProgress(e.Stderr, c.rows()))
	report.Verified = err == nil
	if c.JSON {
		return errors.Join(err, e.WriteJSON(report))
	}
	report.print(e.Text())
	return err
}

// rows returns the number of expected results.
func (c *Command) rows() (n int) {
	for _, op := range operations {
		n += len(ways) * len(op.sizes(c.Size))
	}
	return n
}

// way is a path of messages. Each has a group of columns in the table.
type way struct {
	name      string
	transport verbs.Transport // of the QPs
	direct    bool            // without packets
}

var ways = []way{
	{perf.OverRoCE, verbs.RoCEv2, false},
	{perf.OverIWARP, verbs.IWARP, false},
	{perf.OverNothing, verbs.RoCEv2, true},
}

// runAll produces the table. It ends with the first row that fails, which is included.
func (c *Command) runAll(ctx context.Context, pairs *pairs, bar *progressbar.ProgressBar) (results []result, err error) {
	defer func() { _ = bar.Exit() }()
	for _, op := range operations {
		for _, size := range op.sizes(c.Size) {
			for _, way := range ways {
				what := fmt.Sprintf("%v, %s, %s", op.opcode, way.name, output.Size(size))
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

func (c *Command) row(ctx context.Context, pairs *pairs, way way, op operation, size int) (r result, err error) {
	if op.missing(way.transport) {
		return result{Operation: op.opcode.String(), Transport: way.name, Size: size, Missing: true}, nil
	}
	pair := pairs.of(way)
	before := pair.a.node.Wire.Packets.Load()
	r, err = pair.measure(ctx, way.transport, op, size, c.Time)
	r.Transport, r.Packets = way.name, pair.a.node.Wire.Packets.Load()-before
	if err == nil && r.Verified != r.Messages {
		err = fmt.Errorf("%d of %d messages did not arrive as they were sent", r.Messages-r.Verified, r.Messages)
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r, err
}

func (r *report) print(w io.Writer) {
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	names, header := table.Row{"", ""}, table.Row{"Operation", "Message size"}
	columns := []table.ColumnConfig{{Number: 2, Align: text.AlignRight}}
	for _, way := range ways {
		for _, column := range []string{"Packets each", "Gbit/s", "p50 latency"} {
			names, header = append(names, way.name), append(header, column)
			columns = append(columns, table.ColumnConfig{Number: len(header), Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	t.AppendHeader(names, table.RowConfig{AutoMerge: true, AutoMergeAlign: text.AlignCenter})
	t.AppendHeader(header)
	t.SetColumnConfigs(columns)
	last := ""
	for results := range slices.Chunk(r.Results, len(ways)) {
		first := results[0]
		if last != "" && first.Operation != last {
			t.AppendSeparator()
		}
		last = first.Operation
		row := table.Row{first.Operation, output.Size(first.Size)}
		for _, result := range results {
			row = append(row, result.cells()...)
		}
		t.AppendRow(row)
	}
	t.Render()
	r.printTotals(w)
}

// printTotals prints the numbers of messages and packets.
func (r *report) printTotals(w io.Writer) {
	if !r.Verified {
		return
	}
	for _, way := range ways {
		messages, packets := 0, uint64(0)
		for _, result := range r.Results {
			if result.Transport == way.name {
				messages += result.Verified
				packets += result.Packets
			}
		}
		of := ""
		if way.name == perf.OverRoCE {
			of = fmt.Sprintf(", path MTU %d", r.PathMTU)
		}
		fmt.Fprintf(w, "%-20s all %d messages verified, in %d packets%s\n", way.name+":", messages, packets, of)
	}
	fmt.Fprintln(w, "Direct is what nodes of one process do unless packets are forced: with pipe.FramesOnly, or in softrnic perf with "+
		"--packets.")
}

// cells returns the cells of one way in a row.
func (r *result) cells() table.Row {
	switch {
	case r.Missing:
		return table.Row{"not in " + r.Transport, "-", "-"}
	case r.Error != "":
		return table.Row{"FAILED", fmt.Sprintf("%.3g", r.Gbps), fmt.Sprintf("%.1f µs", r.P50)}
	}
	each := float64(r.Packets) / float64(max(r.Messages, 1))
	return table.Row{fmt.Sprintf("%.2f", each), fmt.Sprintf("%.3g", r.Gbps), fmt.Sprintf("%.1f µs", r.P50)}
}
