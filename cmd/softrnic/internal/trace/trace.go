// Package trace is softrnic trace: it follows the RoCE and iWARP connections of a capture and
// reports errors.
package trace

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Command is the command line of softrnic trace.
type Command struct {
	File   string         `arg:"" optional:"" help:"Capture in pcap or pcapng format, optionally compressed by gzip; - is standard input."`
	Link   *node.LinkSpec `placeholder:"packet:INTERFACE" help:"Instead of a file: capture on an interface of this machine until interrupted (Linux, as root)."`
	Errors bool           `help:"Print only packets with errors."`
	Stats  bool           `help:"Print only findings and statistics, no packets."`
	QP     []uint32       `name:"qp" placeholder:"NUMBER" help:"Print only this QP, on either side (iWARP: this TCP port); repeatable. The analysis still covers all packets."`
	From   time.Duration  `placeholder:"TIME" help:"Print only packets from this time on, such as 1.5s after the start of the capture."`
	To     time.Duration  `placeholder:"TIME" help:"Print only packets up to this time."`
	Ladder string         `type:"path" placeholder:"FILE" help:"Draw a sequence diagram of each connection, to FILE.svg or FILE.html."`
	Order  bool           `name:"in-order" help:"Report reordered packets as WRONG, for a path that preserves the order. Default: report them in a NOTE."`
	JSON   bool           `name:"json" help:"Print JSON lines: one object for each packet, and one with counts and statistics."`
}

//go:embed uncovered.txt
var uncovered string

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return "Each packet is one line: addresses, QPs, PSN, operation, the message and the packet's position in it, the packet that it " +
		"answers, and the time since that one. " +
		"The last packet of a message of NVMe over Fabrics or RPC-over-RDMA has the command or call, and an answer names the command " +
		"or call that it answers. " +
		"WRONG are packets that contradict a checksum, the protocol or each other, and packets that must exist and are missing from " +
		"the capture. " +
		"DOUBTFUL are valid packets that do not fit the pattern of their sender's other packets, for example because one is missing. " +
		"A NOTE reports a reordered packet, which is normal in networks. From then on what breaks the pattern of its connection is a " +
		"NOTE, too (--in-order: still DOUBTFUL).\n\n" +
		"Exit status: 0: nothing is WRONG, and each packet was checked, or is not RDMA. 1: something is WRONG, or the capture cannot be " +
		"read. 2: the command line is wrong. 3: nothing is WRONG, but packets were left out, or could not be checked completely; the last " +
		"lines say which: IP fragments, encrypted packets, unknown tunnels, packets that the capture has cut or the kernel dropped. " +
		"iWARP whose start is not captured is followed from its first whole FPDU on, unless it has MPA's markers. TLS is left out, except " +
		"that of port 443, as iWARP may be in it. Without the start of a connection it is known by the start of a record: where a segment " +
		"begins, or where two follow each other; less of it is other TCP.\n\n" +
		"A pcapng capture may say that it has dropped packets, by the interface or the system. What is missing is then DOUBTFUL, as the " +
		"capture may have lost it.\n\n" +
		"VLAN tags, Linux's cooked captures, VXLAN, Geneve, GRE, ERSPAN, MPLS, PPPoE, EtherIP and IP in IP are followed. A capture of " +
		"several interfaces may have a packet more than once; it is analysed where it is seen first.\n\n" +
		strings.ReplaceAll(uncovered, "\n- ", "\n\n- ") // one paragraph each
}

// Run prints the packets, findings and statistics.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	if (c.File == "") == (c.Link == nil) {
		return cli.Usagef("no input: use a file or --link")
	}
	name := c.File
	var src source
	switch {
	case c.Link != nil:
		live, err := listen(c.Link)
		if err != nil {
			return err
		}
		name = "link"
		context.AfterFunc(ctx, live.close)
		src = live
	case c.File == "-":
		name = "standard input"
		s, err := open(os.Stdin)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		src = s
	default:
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer f.Close()
		if src, err = open(f); err == nil {
			if info, ierr := f.Stat(); ierr == nil && info.Mode().IsRegular() {
				src, err = foretold(ctx, src, f)
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	a, err := c.trace(ctx, src, e.Stdout, name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if n := a.counts.Wrong; n > 0 {
		return fmt.Errorf("%s: %d wrong", name, n)
	}
	if n := a.counts.leftOut(); n > 0 {
		return cli.IncompleteError{Err: fmt.Errorf("%s: nothing is wrong in what was checked, but %d packets were not checked, or not completely",
			name, n)}
	}
	return nil
}

// trace analyses a source to its end and prints the results.
func (c *Command) trace(ctx context.Context, src source, w io.Writer, name string) (*analysis, error) {
	p := &printer{out: bufio.NewWriterSize(w, 1<<16), packets: !c.Errors && !c.Stats, json: c.JSON,
		filter: filter{qps: c.QP, from: int64(c.From), to: int64(c.To)}}
	if c.Ladder != "" {
		p.chart = new(charts)
	}
	a := newAnalysis(p, !c.Stats || c.Ladder != "")
	a.strict = c.Order
	if c.Link != nil {
		p.flush = p.out.Flush
	}
	err := a.read(src, func() bool { return ctx.Err() != nil })
	p.summary(a)
	if ferr := p.out.Flush(); err == nil {
		err = ferr
	}
	if p.chart != nil {
		err = errors.Join(err, p.chart.write(c.Ladder, "Packets of "+name))
	}
	return a, err
}
