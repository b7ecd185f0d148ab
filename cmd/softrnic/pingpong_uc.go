package main

import (
	"context"

	"github.com/softrnic/softrnic/verbs"
)

// pingpongUC is ibv_uc_pingpong.
type pingpongUC struct {
	pingpongFlags
	pathMTU
}

// Help implements kong.HelpProvider.
func (*pingpongUC) Help() string {
	return pingpongHelp("uc", "one message", rxeGID) + pathMTUHelp + " When a packet is lost, it hangs."
}

// Run plays.
func (c *pingpongUC) Run(ctx context.Context, e *env) error {
	return c.run(ctx, e, pingpongKind{qpType: verbs.UC, pathMTU: c.PathMTU, numQP: 1, dests: 1, filler: filler})
}
