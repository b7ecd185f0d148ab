package pingpong

import (
	"context"
	"fmt"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

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
