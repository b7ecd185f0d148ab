// Package hub is `softrnic hub`, which shares the machine's addresses between processes.
package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/softrnic/softrnic/internal/stack/hub"
	"github.com/softrnic/softrnic/rdmatransport"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
)

// Command is a hub.
type Command struct {
	Addr      []node.IPAddr `sep:"none" placeholder:"IP" help:"One of this machine's addresses that the hub has from the beginning; repeatable. A link-local one has its interface as zone: fe80::1%eth0. Default: only those that nodes ask for."`
	Idle      time.Duration `placeholder:"TIME" help:"End when there was no node for so long. Default: go on."`
	Directory string        `type:"path" placeholder:"DIR" help:"Where nodes find the hub. Default: hub-N, with the number of the network namespace, in $XDG_RUNTIME_DIR/softrnic, or without XDG_RUNTIME_DIR in softrnic-UID in $TMPDIR or /tmp."`
	Relay     bool          `help:"Pass on all datagrams, rather than let the kernel pass each node its own."`
	Metrics   string        `placeholder:"HOST:PORT" help:"Answer Prometheus on this address: http://HOST:PORT/metrics has how many nodes there are, and what has come for them."`
	Log       slog.Level    `name:"log-level" default:"info" placeholder:"LEVEL" help:"Log messages of at least this level to stderr: debug, info, warn or error. Default: info."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `It owns UDP port 4791. The kernel passes each node what is for its QPs, and the hub the rest: MADs, and what comes from its own
addresses. Where the kernel cannot, the hub passes on all, and logs that. A node with --link kernel --shared starts one if need be,
which ends when it has been idle; nodes of one user and one network namespace have the same hub. Linux only.

  softrnic pingpong rc --link kernel:lo --addr 127.0.0.1 --shared             in one terminal
  softrnic pingpong rc --link kernel:lo --addr 127.0.0.1 --shared 127.0.0.1   in another`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	if c.Idle < 0 {
		return fmt.Errorf("--idle %v: must be positive; without it the hub runs on", c.Idle)
	}
	return nil
}

// Run serves until ctx ends, and then returns nil.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	log := slog.New(slog.NewTextHandler(e.Stderr, &slog.HandlerOptions{Level: c.Log}))
	counters := new(hub.Counters)
	cfg := hub.Config{Directory: cmp.Or(c.Directory, hub.Directory()), Classifier: rdmatransport.NewClassifier(), Idle: c.Idle,
		Relay: c.Relay, Log: log, Counters: counters}
	stop, err := running.ServeMetrics(c.Metrics, (*collector)(counters), log)
	if err != nil {
		return err
	}
	defer stop()
	for _, a := range c.Addr {
		cfg.Addrs = append(cfg.Addrs, a.Addr)
	}
	err = hub.Serve(ctx, cfg)
	if errors.Is(err, hub.ErrRunning) {
		return fmt.Errorf("%w: nodes find it in %s by themselves", err, filepath.Clean(cfg.Directory))
	}
	return err
}
