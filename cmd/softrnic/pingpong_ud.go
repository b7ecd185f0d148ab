package main

import (
	"context"

	"github.com/softrnic/softrnic/verbs"
)

// pingpongUD is ibv_ud_pingpong.
type pingpongUD struct{ pingpongFlags }

// Help implements kong.HelpProvider.
func (*pingpongUD) Help() string {
	return pingpongHelp("ud", "one datagram", rxeGID) + `

A datagram must fit the path MTU of both links: 1024 at an MTU of 1500, 4096 at 4200. When one is lost, it hangs.`
}

// Run plays.
func (c *pingpongUD) Run(ctx context.Context, e *env) error {
	return c.run(ctx, e, pingpongKind{qpType: verbs.UD, numQP: 1, dests: 1, filler: filler})
}
