package pingpong

import (
	"context"
	"fmt"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// rc is ibv_rc_pingpong.
type rc struct {
	flags
	pathMTU
	Transport node.Transport `default:"rocev2" placeholder:"PROTOCOL" help:"Wire protocol: rocev2 only, as the QPs meet without rdma_cm."`
}

// Help implements kong.HelpProvider.
func (*rc) Help() string { return help("rc", "one message", rxeGID) + pathMTUHelp }

// Validate implements kong's check after parsing.
func (c *rc) Validate() error {
	if c.Transport.Transport != verbs.RoCEv2 {
		return fmt.Errorf("--transport iwarp: ibv_rc_pingpong has no iWARP, whose QPs need rdma_cm: use softrnic rping")
	}
	return c.flags.Validate()
}

// Run runs the ping-pong.
func (c *rc) Run(ctx context.Context, e *cli.Env) error { return c.run(ctx, e, rcKind(c.PathMTU)) }

func rcKind(pathMTU int) kind {
	return kind{qpType: verbs.RC, pathMTU: pathMTU, numQP: 1, dests: 1, filler: filler}
}
