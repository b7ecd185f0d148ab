package run

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/dropin"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/sockets"
)

// withSockets runs the program with the preloaded library for sockets, whose agent is this command.
// It waits until the agent is no longer needed.
func (c *Command) withSockets(ctx context.Context, e *cli.Env, cfg dropin.Config, libs, command string) error {
	env := *e
	env.Command = command
	counters := relay.NewCounters("sockets")
	flags := running.Flags{Flags: cfg.Rails[0].Flags, Metrics: c.Metrics, Collector: counters}
	// Signals are forwarded to the program, which decides when to end.
	return flags.RunNodeForPeer(context.WithoutCancel(ctx), &env, func(_ context.Context, n *node.Node) (err error) {
		agent, err := sockets.New(n, sockets.Config{Transports: cfg.Transports, Wait: c.Wait, Direct: c.Direct, Counters: counters})
		if err != nil {
			return err
		}
		flags.Limits.Add("sockets", agent.Unread)
		flags.Limits.Add("accepted sockets", agent.Accepted)
		flags.Limits.Reached("sockets", "pending", agent.Declined)
		flags.Limits.Reached("sockets", "undelivered", agent.Backlogged)
		flags.Limits.Reached("sockets", "direct", agent.NotDirect)
		defer func() {
			closed := agent.Close()
			if cfg.Counters != "" {
				closed = errors.Join(closed, dropin.AppendCounters(cfg.Counters, n.Dev))
			}
			if err == nil {
				err = closed
			}
		}()
		err = c.spawn(e, environ(map[string]string{
			"LD_PRELOAD": filepath.Join(libs, dropin.SocketsLibrary), "SOFTRNIC_SOCKETS": agent.Env(),
		}))
		agent.Drain(ctx)
		return err
	})
}
