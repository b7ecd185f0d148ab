package pingpong

import (
	"context"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// ud is ibv_ud_pingpong.
type ud struct{ flags }

// Help implements kong.HelpProvider.
func (*ud) Help() string {
	return help("ud", "one datagram", rxeGID) + `

A datagram must fit the path MTU of both links: 1024 at an MTU of 1500, 4096 at 4200. When one is lost, it hangs.`
}

// Run runs the ping-pong.
func (c *ud) Run(ctx context.Context, e *cli.Env) error {
	return c.run(ctx, e, kind{qpType: verbs.UD, numQP: 1, dests: 1, filler: filler})
}
