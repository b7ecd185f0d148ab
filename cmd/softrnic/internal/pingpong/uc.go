package pingpong

import (
	"context"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// uc is ibv_uc_pingpong.
type uc struct {
	flags
	pathMTU
}

// Help implements kong.HelpProvider.
func (*uc) Help() string {
	return help("uc", "one message", rxeGID) + pathMTUHelp + " When a packet is lost, it hangs."
}

// Run runs the ping-pong.
func (c *uc) Run(ctx context.Context, e *cli.Env) error {
	return c.run(ctx, e, kind{qpType: verbs.UC, pathMTU: c.PathMTU, numQP: 1, dests: 1, filler: filler})
}
