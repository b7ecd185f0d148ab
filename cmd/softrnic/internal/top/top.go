// Package top is `softrnic top`: it shows the activity of the queue pairs of running nodes.
package top

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"golang.org/x/term"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/status"
	"github.com/softrnic/softrnic/cmd/internal/status/query"
)

// Command shows the queue pairs of nodes.
type Command struct {
	PID      int           `arg:"" optional:"" name:"pid" help:"Show the nodes of this process and of those that it started. Default: all nodes of this user."`
	Interval time.Duration `short:"d" default:"1s" placeholder:"TIME" help:"Time between updates. Default: 1s."`
	Count    int           `short:"n" placeholder:"N" help:"Number of updates to show. Default: no limit."`
	JSON     bool          `name:"json" help:"Print JSON: one object per node and update."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `It shows the nodes of perf, serve, pingpong, rping, mckey, nc, proxy and run --top while these run. Rates are of payload (iWARP:
of FPDUs) since the last update. On a terminal, q or an interrupt ends it.

    QP       number, and the process's number if there are several
    SQ, RQ   work requests that are posted and not complete
    TX, RX   10^6 bits per second
    RETRY    times that the QP went back N, and packets that it has retransmitted one by one
    RNR      RNR NAKs received
    DUP      duplicate requests received`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	if c.Interval < 10*time.Millisecond {
		return fmt.Errorf("--interval %v: must be at least 10ms", c.Interval)
	}
	if c.Count < 0 {
		return fmt.Errorf("--count %d: must be at least 1; without it, updates continue", c.Count)
	}
	return nil
}

// errNone is the error if there is no node.
var errNone = errors.New("no node of this user runs here: start one, such as softrnic serve")

// Run shows nodes until ctx ends, and then returns nil, or until c.Count samples are shown.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	nodes, err := query.Nodes(ctx, c.PID)
	switch {
	case err != nil:
		return err
	case len(nodes) == 0 && c.PID != 0:
		return fmt.Errorf("process %d has no node of this user", c.PID)
	case len(nodes) == 0:
		return errNone
	}
	if f, ok := e.Stdout.(*os.File); ok && !c.JSON && term.IsTerminal(int(f.Fd())) {
		return c.interactive(ctx, f, nodes)
	}
	return c.print(ctx, e.Stdout, nodes)
}

// print writes one sample after another.
func (c *Command) print(ctx context.Context, w io.Writer, before []status.Node) error {
	for looks := 0; c.Count == 0 || looks < c.Count; looks++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Interval):
		}
		now, err := query.Nodes(ctx, c.PID)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case len(now) == 0:
			return nil // all nodes have ended
		}
		if c.JSON {
			for _, n := range now {
				if err := json.NewEncoder(w).Encode(n); err != nil {
					return err
				}
			}
		} else if _, err := io.WriteString(w, renderTable(before, now, 0, 0)+"\n"); err != nil {
			return err
		}
		before = now
	}
	return nil
}

// interactive shows the nodes on a terminal.
func (c *Command) interactive(ctx context.Context, f *os.File, nodes []status.Node) error {
	m := &screen{ctx: ctx, c: c, before: nodes, now: nodes}
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithOutput(f), tea.WithAltScreen()).Run()
	if ctx.Err() != nil || errors.Is(err, tea.ErrInterrupted) {
		err = nil
	}
	return errors.Join(err, m.err)
}

// screen is the model of bubbletea.
type screen struct {
	ctx           context.Context
	c             *Command
	before, now   []status.Node
	looks         int
	width, height int
	err           error
}

// looked is the message with a new sample of the nodes.
type looked struct {
	nodes []status.Node
	err   error
}

func (m *screen) look() tea.Cmd {
	return tea.Tick(m.c.Interval, func(time.Time) tea.Msg {
		nodes, err := query.Nodes(m.ctx, m.c.PID)
		return looked{nodes, err}
	})
}

// Init implements tea.Model.
func (m *screen) Init() tea.Cmd { return m.look() }

// Update implements tea.Model.
func (m *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case tea.KeyMsg:
		switch msg.String() {
		case "q", "esc", "ctrl+c":
			return m, tea.Quit
		}
	case looked:
		if m.err = msg.err; m.err != nil {
			return m, tea.Quit
		}
		m.before, m.now = m.now, msg.nodes
		if m.looks++; m.looks == m.c.Count {
			return m, tea.Quit
		}
		return m, m.look()
	}
	return m, nil
}

// View implements tea.Model.
func (m *screen) View() string {
	if len(m.now) == 0 {
		return "All nodes have ended.\n"
	}
	return renderTable(m.before, m.now, m.width, m.height)
}
