package pingpong

import (
	"context"
	"fmt"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// rc is ibv_rc_pingpong.
type rc struct {
	flags
	pathMTU
}

// Help implements kong.HelpProvider.
func (*rc) Help() string { return help("rc", "one message", rxeGID) + pathMTUHelp }

// Run runs the ping-pong.
func (c *rc) Run(ctx context.Context, e *cli.Env) error { return c.run(ctx, e, rcKind(c.PathMTU)) }

func rcKind(pathMTU int) kind {
	return kind{qpType: verbs.RC, pathMTU: pathMTU, numQP: 1, dests: 1, filler: filler}
}

// uc is ibv_uc_pingpong.
type uc struct {
	flags
	pathMTU
}

// Help implements kong.HelpProvider.
func (*uc) Help() string {
	return help("uc", "one message", rxeGID) + pathMTUHelp + " A lost packet makes the ping-pong hang."
}

// Run runs the ping-pong.
func (c *uc) Run(ctx context.Context, e *cli.Env) error {
	return c.run(ctx, e, kind{qpType: verbs.UC, pathMTU: c.PathMTU, numQP: 1, dests: 1, filler: filler})
}

// ud is ibv_ud_pingpong.
type ud struct{ flags }

// Help implements kong.HelpProvider.
func (*ud) Help() string {
	return help("ud", "one datagram", rxeGID) + `

A datagram must fit the path MTU of both links: 1024 at an MTU of 1500, 4096 at 4200. A lost datagram
makes the ping-pong hang.`
}

// Run runs the ping-pong.
func (c *ud) Run(ctx context.Context, e *cli.Env) error {
	return c.run(ctx, e, kind{qpType: verbs.UD, numQP: 1, dests: 1, filler: filler})
}

// srq is ibv_srq_pingpong.
type srq struct {
	flags
	pathMTU
	NumQP int `short:"q" name:"num-qp" default:"16" help:"QPs; the same on both sides. Default: 16."`
}

// srqDests is the number of addresses that ibv_srq_pingpong sends for any number of QPs. Unused
// ones are zeros.
const srqDests = 256

// Help implements kong.HelpProvider.
func (*srq) Help() string {
	return help("srq", "a message on each of several connections", rxeGID) + pathMTUHelp
}

// Validate implements kong's check after parsing.
func (c *srq) Validate() error {
	if most := min(c.RxDepth, srqDests); c.NumQP < 1 || c.NumQP > most {
		return fmt.Errorf("--num-qp %d: must be 1 to %d, and --rx-depth of at least that", c.NumQP, most)
	}
	if err := c.flags.Validate(); err != nil {
		return err
	}
	if most := 1 << 30 / c.RxDepth; c.Size > most {
		return fmt.Errorf("--size %d: must be at most %d with --rx-depth %d: each receive has a buffer of its own", c.Size, most, c.RxDepth)
	}
	return nil
}

// Run runs the ping-pong.
func (c *srq) Run(ctx context.Context, e *cli.Env) error {
	return c.run(ctx, e, kind{qpType: verbs.RC, pathMTU: c.PathMTU, numQP: c.NumQP, shared: true, dests: srqDests})
}
