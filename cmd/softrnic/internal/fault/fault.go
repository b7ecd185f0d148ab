// Package fault is `softrnic fault`: it makes the devices of running nodes fail on purpose, and
// runs a program once for each fault that it can meet.
package fault

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/cmd/internal/status/query"
	"github.com/softrnic/softrnic/rdmatransport/fault"
)

// Command adds rules to a process's devices, or shows or ends them; or sweeps a program.
type Command struct {
	Sweep   bool          `help:"Run the program that follows -- once for each fault that it can meet, and report how each run ended."`
	Server  string        `placeholder:"COMMAND" help:"With --sweep: a command of the shell that is started before each run of the program, for example its server. No fault hits it."`
	Client  string        `placeholder:"COMMAND" help:"With --sweep: a command of the shell that is started after the program, for example its client. No fault hits it."`
	Settle  time.Duration `default:"1s" placeholder:"TIME" help:"With --server or --client: how long after the first of the two the second is started. Default: 1s."`
	Timeout time.Duration `default:"30s" placeholder:"TIME" help:"With --sweep: after this time a run counts as hung, and is killed. It must be longer than the program and its retries take. Default: 30s."`
	Max     int           `placeholder:"N" help:"With --sweep: at most this many runs. Default: all."`
	Only    string        `placeholder:"TEXT" help:"With --sweep: only faults with this text, such as post_send or wc:."`
	JUnit   string        `name:"junit" type:"path" placeholder:"FILE" help:"With --sweep: also write the results to this file, as JUnit XML."`
	Args    []string      `arg:"" optional:"" passthrough:"" name:"pid" help:"The process, or one that started it, such as softrnic run or mpirun, and rules; none ends all. With --sweep, the program and its arguments."`

	pid   int
	rules string
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	_, rules, _ := strings.Cut(fault.Grammar, "\n\n")
	return `The process is a node of this user: any command of softrnic with a node, or a program of softrnic run. Without rules, its rules
are listed, with the number of calls, requests or events that matched (SEEN) and that failed (INJECTED).

  softrnic run --fault none -- ib_send_bw -R 127.0.0.1 &
  softrnic fault $! 'wc:nth=100=RETRY_EXC_ERR'
  softrnic fault $! none

A rule is WHAT:SELECTORS=EFFECT, and the selectors, separated by commas, may be missing. Several rules are several arguments.

` + rules + `

With --sweep, softrnic run first runs the program without a fault, and counts its calls and completions. Then it runs the program once
for each: the first three and the last of each call fail, and likewise of each kind of completion; and the device is removed, a QP
fails, and connections are rejected or unreachable. A run ends by itself with an error (clean), or with status 0 although something
has failed (exited 0), crashes, or hangs. The settings of softrnic run are environment variables here, such as SOFTRNIC_LINK.

  softrnic fault --sweep --server 'softrnic run -- rping -s -C 3' -- rping -c -a 127.0.0.1 -C 3`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	args := c.Args
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if c.Sweep {
		c.Args = args
		switch {
		case len(args) == 0:
			return errors.New("no program: it follows --, as in softrnic fault --sweep -- rping -c -a 10.0.0.1")
		case c.Server != "" && c.Client != "":
			return errors.New("--server and --client: the program has one of the two")
		case c.Timeout <= 0 || c.Settle <= 0 || c.Max < 0:
			return errors.New("--timeout, --settle and --max must be more than 0")
		}
		return nil
	}
	if len(args) == 0 {
		return errors.New("no process: give its ID, or --sweep and a program")
	}
	var err error
	if c.pid, err = strconv.Atoi(args[0]); err != nil || c.pid <= 0 {
		return fmt.Errorf("%q is not a process ID", args[0])
	}
	c.rules = strings.Join(args[1:], ";")
	_, err = fault.Parse(c.rules)
	return err
}

// Run adds the rules, if any are given, and lists those of the process; or it sweeps a program.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	if c.Sweep {
		return c.sweep(ctx, e)
	}
	var r status.Request
	if c.rules != "" {
		r.Fault = &c.rules
	}
	nodes, err := query.AskAll(ctx, c.pid, r)
	switch {
	case err != nil:
		return err
	case len(nodes) == 0:
		return fmt.Errorf("process %d has no node of this user: start the program with softrnic run --fault none", c.pid)
	}
	w := tabwriter.NewWriter(e.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PID\tLINK\tRULE\tSEEN\tINJECTED\tERROR\t")
	var refused []error
	for _, n := range nodes {
		if n.Error != "" {
			refused = append(refused, fmt.Errorf("process %d, link %s: %s", n.PID, n.Link, n.Error))
		}
		for _, s := range n.Faults {
			fmt.Fprintf(w, "%d\t%s\t%s\t%d\t%d\t%s\t\n", n.PID, n.Link, s.Rule, s.Seen, s.Injected, s.Error)
		}
	}
	return errors.Join(append(refused, w.Flush())...)
}
