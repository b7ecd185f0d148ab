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
	File   string         `arg:"" optional:"" help:"Capture, pcap or pcapng, perhaps compressed by gzip; - is standard input."`
	Link   *node.LinkSpec `placeholder:"packet:INTERFACE" help:"Instead of a file: what passes through an interface of this machine (Linux, as root), until interrupted."`
	Errors bool           `help:"Print only the packets with something wrong."`
	Stats  bool           `help:"Print only findings and statistics, no packets."`
	QP     []uint32       `name:"qp" placeholder:"NUMBER" help:"Only this QP, on either side; of iWARP, this TCP port. Repeatable. All packets are followed nevertheless."`
	From   time.Duration  `placeholder:"TIME" help:"Only from this time on, such as 1.5s, since the beginning of the capture."`
	To     time.Duration  `placeholder:"TIME" help:"Only up to this time."`
	Ladder string         `type:"path" placeholder:"FILE" help:"Draw a sequence diagram of each connection, to FILE.svg or FILE.html."`
	Order  bool           `name:"in-order" help:"Packets that come behind later ones of their sender are WRONG, as on a path that keeps the order. Default: a NOTE says that they were reordered."`
	JSON   bool           `name:"json" help:"Print JSON: an object a line for each packet, and one with counts and statistics."`
}

//go:embed uncovered.txt
var uncovered string

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return "Every packet has a line: addresses, QPs, PSN, operation, its message and its place in that, what it answers, and how long " +
		"that took. " +
		"WRONG are packets that contradict a checksum, the protocol or each other, and packets that must have been there and are not " +
		"in the capture: " +
		"the exit status is 1. DOUBTFUL is what is right and yet another pattern than the sender's other packets have, as when one is " +
		"missing. " +
		"A NOTE says that a packet was reordered, as networks " +
		"do.\n\n" + strings.ReplaceAll(uncovered, "\n- ", "\n\n- ") // one paragraph each
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
		if src, err = open(f); err != nil {
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
