package main

import (
	"context"
	"fmt"

	"github.com/softrnic/softrnic/verbs"
)

// pingpongRC is ibv_rc_pingpong.
type pingpongRC struct {
	pingpongFlags
	pathMTU
	Transport transport `default:"rocev2" placeholder:"PROTOCOL" help:"Wire protocol: rocev2 only, as the QPs meet without rdma_cm."`
}

// Help implements kong.HelpProvider.
func (*pingpongRC) Help() string { return pingpongHelp("rc", "one message", rxeGID) + pathMTUHelp }

// Validate implements kong's check after parsing.
func (c *pingpongRC) Validate() error {
	if c.Transport.Transport != verbs.RoCEv2 {
		return fmt.Errorf("--transport iwarp: ibv_rc_pingpong has no iWARP, whose QPs need rdma_cm: use softrnic rping")
	}
	return c.pingpongFlags.Validate()
}

// Run plays.
func (c *pingpongRC) Run(ctx context.Context, e *env) error { return c.run(ctx, e, rcKind(c.PathMTU)) }

func rcKind(pathMTU int) pingpongKind {
	return pingpongKind{qpType: verbs.RC, pathMTU: pathMTU, numQP: 1, dests: 1, filler: filler}
}
