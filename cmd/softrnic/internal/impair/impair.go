// Package impair is `softrnic impair`: it changes the impairment of running nodes' links.
package impair

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/cmd/internal/status/query"
	"github.com/softrnic/softrnic/link/impair"
)

// Command changes the impairment of a process's links, or shows it.
type Command struct {
	PID  int    `arg:"" name:"pid" help:"The process, or one that started it, such as softrnic run or mpirun."`
	Spec string `arg:"" optional:"" help:"The new impairment, as for --impair: loss=1%,delay=1ms. none ends it. Default: leave it as it is."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `The process is a node of this user that was started with --impair: any command with that flag, or a program of softrnic run.

  softrnic run --impair none -- ib_send_bw &
  softrnic impair $! loss=0.1%
  softrnic impair $! none

The table has a line for each link of the process, and counts packets since its start. LOST includes packets that overflowed a queue.`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	if c.PID <= 0 {
		return fmt.Errorf("%d is not a process ID", c.PID)
	}
	return new(node.Impairing).UnmarshalText([]byte(c.Spec))
}

// Run changes the impairment, if one is given, and shows the links.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	var r status.Request
	if c.Spec != "" {
		r.Impair = &c.Spec
	}
	nodes, err := query.Ask(ctx, c.PID, r)
	switch {
	case err != nil:
		return err
	case len(nodes) == 0:
		return fmt.Errorf("process %d has no node of this user: start it with --impair none, or with another value of --impair", c.PID)
	}
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PID\tLINK\tIMPAIRMENT\tDIRECTION\tPACKETS\tLOST\tDUPLICATED\tREORDERED\tCORRUPTED\tMARKED\t")
	var refused []error
	for _, n := range nodes {
		if n.Error != "" {
			refused = append(refused, fmt.Errorf("process %d, link %s: %s", n.PID, n.Link, n.Error))
		}
		i := n.Impairment
		if i == nil {
			continue
		}
		for _, d := range []struct {
			name string
			c    impair.Counters
		}{{"in", i.In}, {"out", i.Out}} {
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t\n", n.PID, n.Link, i.Spec, d.name, d.c.Packets,
				d.c.Lost+d.c.Overflowed, d.c.Duplicated, d.c.Reordered, d.c.Corrupted, d.c.Marked)
		}
	}
	return errors.Join(append(refused, w.Flush())...)
}
