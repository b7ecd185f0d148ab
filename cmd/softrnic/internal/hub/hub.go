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

	"github.com/softrnic/softrnic/rdmatransport/classify"
	"github.com/softrnic/softrnic/stack/hub"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
)

// Command is a hub.
type Command struct {
	Addr      []node.IPAddr `sep:"none" placeholder:"IP" help:"Address of this machine that the hub opens when it starts; repeatable. A link-local address has its interface as the zone: fe80::1%eth0. Default: only the addresses that nodes request."`
	Idle      time.Duration `placeholder:"TIME" help:"End after this time without nodes. Default: no limit."`
	Directory string        `type:"path" placeholder:"DIR" help:"Directory in which nodes find the hub. Default: hub-N, where N is the number of the network namespace, in $XDG_RUNTIME_DIR/softrnic. If XDG_RUNTIME_DIR is not set, that is in /run/softrnic-0 for root, and for others in softrnic-UID in $TMPDIR or /tmp."`
	System    bool          `help:"Serve all users of the machine, in /run/softrnic, and forward all datagrams through the hub. The Debian package has this as the systemd service softrnic-hub."`
	Relay     bool          `help:"Forward all datagrams through the hub, instead of letting the kernel deliver them to the nodes."`
	Metrics   string        `placeholder:"HOST:PORT" help:"Serve Prometheus metrics at http://HOST:PORT/metrics: the number of nodes, and the packets received for them."`
	Log       slog.Level    `name:"log-level" default:"info" placeholder:"LEVEL" help:"Log messages of at least this level to stderr: debug, info, warn or error. Default: info."`
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `It owns UDP port 4791. The kernel delivers packets for a node's QPs to that node, and all others to the hub: MADs, and
packets from the hub's own addresses. Where the kernel cannot do this, the hub forwards all packets, and logs it. A node
with --link kernel --shared starts a hub if none runs; this hub ends when it has been idle. Nodes of one user and one
network namespace share one hub. Linux only.

With --system it is the hub of the machine. Nodes of users without a running hub of their own use it, and share addresses with
those of other users, but no memory, sockets or numbers. It passes on all datagrams, which is slower: Linux
has no sockets that users cannot take from each other. It needs no privileges besides /run/softrnic.

  softrnic pingpong rc --link kernel:lo --addr 127.0.0.1 --shared             in one terminal
  softrnic pingpong rc --link kernel:lo --addr 127.0.0.1 --shared 127.0.0.1   in another`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	if c.System && c.Directory != "" {
		return errors.New("--directory: nodes find the hub of the machine in /run/softrnic only: leave it out")
	}
	if c.Idle < 0 {
		return fmt.Errorf("--idle %v: must be positive; without it, there is no limit", c.Idle)
	}
	return nil
}

// Run serves until ctx ends, and then returns nil.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	log := e.Log(c.Log)
	counters := new(hub.Counters)
	own := hub.Directory()
	if c.System {
		own = hub.SystemDirectory()
	}
	cfg := hub.Config{Directory: cmp.Or(c.Directory, own), System: c.System, Classifier: classify.New(), Idle: c.Idle,
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
