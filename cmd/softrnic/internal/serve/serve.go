// Package serve is `softrnic serve`: a node that answers ping, ibv_rc_pingpong and rping.
package serve

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/responder"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/pingpong"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/rping"
)

// Command is a node that serves tests of other machines in a lab.
type Command struct {
	RpingPort    uint16           `type:"port" default:"7174" help:"Port of rping. Default: 7174."`
	PingpongPort uint16           `type:"port" default:"18515" help:"TCP port of ibv_rc_pingpong. Default: 18515."`
	PathMTU      int              `name:"path-mtu" default:"1024" enum:"256,512,1024,2048,4096" placeholder:"BYTES" help:"Path MTU of ping-pongs, the same as the client's -m: 256, 512, 1024, 2048 or 4096. Default: 1024."`
	MaxSize      int              `default:"1048576" placeholder:"BYTES" help:"Largest message of a ping-pong. Default: 1048576."`
	Transport    []node.Transport `default:"rocev2,iwarp" placeholder:"PROTOCOL" help:"Wire protocols of rping: rocev2, iwarp. Default: both. Ping-pongs are RoCEv2."`
	Idle         time.Duration    `default:"30s" help:"End a ping-pong after this time without a message, because clients do not announce the end. Default: 30s."`

	Conform     bool   `help:"Also be the responder of softrnic conform: a tester with the token may create queue pairs and read their memory. The token is that of SOFTRNIC_CONFORM_TOKEN in the environment, where other users do not see it; otherwise it is random, and printed to stderr."`
	ConformAddr string `placeholder:"HOST:PORT" default:"127.0.0.1:18516" help:"Address of this machine, not of the node, on which --conform listens. Default: 127.0.0.1:18516."`

	running.Flags
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `Each connection is logged to stderr. An interrupt ends all connections, and removes interfaces that the node has created.

  softrnic serve --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24           here
  ping 10.0.0.9                                                           on the Linux machine
  ibv_rc_pingpong -d rxe0 -g 1 10.0.0.9
  rping -c -a 10.0.0.9 -v -C 10`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	if c.MaxSize < 1 || c.MaxSize > 1<<30 {
		return fmt.Errorf("--max-size %d: must be 1 to %d", c.MaxSize, 1<<30)
	}
	if c.PingpongPort == c.RpingPort && slices.Contains(c.Transport, node.Transport{Transport: verbs.IWARP}) {
		return fmt.Errorf("--pingpong-port %d is also --rping-port: over iWARP rping needs its own TCP port: use another",
			c.PingpongPort)
	}
	return nil
}

// Run serves until ctx ends, and then returns nil.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	c.Log = min(c.Log, slog.LevelInfo)
	return c.RunNodeForPeer(ctx, e, c.serve)
}

func (c *Command) serve(ctx context.Context, n *node.Node) error {
	c.HintWithoutAddr(n)
	s := &server{Command: c, node: n}
	cfg := &rdmacm.Config{Backlog: rping.Backlog}
	for _, t := range c.Transport {
		cfg.Transports = append(cfg.Transports, t.Transport)
	}
	rping, err := rdmacm.Listen(n.Dev, fmt.Sprintf(":%d", c.RpingPort), cfg)
	if err != nil {
		return fmt.Errorf("--rping-port %d: %w", c.RpingPort, err)
	}
	pingpong, err := n.ListenStream(netip.AddrPortFrom(netip.Addr{}, c.PingpongPort))
	if err != nil {
		return errors.Join(fmt.Errorf("--pingpong-port %d: %w", c.PingpongPort, err), rping.Close())
	}
	conforming, token, err := c.listenConform(n)
	if err != nil {
		return errors.Join(err, rping.Close(), pingpong.Close())
	}
	n.Log.Info("serving", "addrs", n.Addrs(), "rping", c.RpingPort, "pingpong", c.PingpongPort)

	serving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.work.Go(func() { cancel(s.rpings(serving, rping, c.Limits.Gate("rping", maxRpings))) })
	s.work.Go(func() {
		cancel(accept.Serve(serving, pingpong, c.Limits.Gate("pingpong", maxPingpongs), n.Log, s.pingpong))
	})
	if conforming != nil {
		gate := c.Limits.Gate("conform", maxTesters)
		s.work.Go(func() { cancel(responder.Serve(serving, conforming, gate, n.Log, n.Dev, token)) })
	}
	s.work.Wait()
	n.Log.Info("stopped")
	if ctx.Err() == nil { // it has ended by itself
		err = context.Cause(serving)
	}
	return errors.Join(err, rping.Close())
}

// listenConform listens for softrnic conform, and returns the token, if the flags say so.
func (c *Command) listenConform(n *node.Node) (l net.Listener, token string, err error) {
	if !c.Conform {
		return nil, "", nil
	}
	var drawn []any
	if token = os.Getenv(control.TokenVariable); token == "" {
		token = rand.Text()
		drawn = []any{"token", token}
	}
	if l, err = net.Listen("tcp", c.ConformAddr); err != nil {
		return nil, "", fmt.Errorf("--conform-addr %s: %w", c.ConformAddr, err)
	}
	n.Log.Info("conform", append([]any{"control", l.Addr()}, drawn...)...)
	return l, token, nil
}

// server is a serving node.
type server struct {
	*Command
	node *node.Node
	work sync.WaitGroup
}

// ended logs the end of a connection.
func (s *server) ended(ctx context.Context, log *slog.Logger, err error, args ...any) {
	switch {
	case err == nil, rping.Goodbye(err):
		log.Info("done", args...)
	case ctx.Err() != nil:
		log.Info("interrupted", args...)
	default:
		log.Warn("failed", append(args, "error", err)...)
	}
}

// Connections of each service. A ping-pong has memory for its largest message, and a tester for 64
// queue pairs.
const (
	maxRpings    = 4096
	maxPingpongs = 128
	maxTesters   = 16
)

// rpings answers rping clients until the listener fails.
func (s *server) rpings(ctx context.Context, l *rdmacm.Listener, gate *accept.Gate) error {
	for {
		r, err := l.Request(ctx)
		if err != nil {
			return err
		}
		ctx, end := context.WithCancel(ctx)
		place, err := gate.Enter(r.PeerAddr().Addr(), end)
		if err != nil {
			end()
			_ = r.Reject(nil)
			s.node.Log.Warn("a connection is refused", "from", r.PeerAddr(), "error", err)
			continue
		}
		s.work.Go(func() {
			defer place.Leave()
			defer end()
			log := s.node.Log.With("service", "rping", "peer", r.PeerAddr(), "transport", r.Transport())
			if err := accept.Wait(ctx, place); err != nil {
				_ = r.Reject(nil)
				log.Warn("a connection is refused", "error", err)
				return
			}
			log.Info("connection")
			pings, err := rping.Answer(ctx, r, func() { place.Prove() }, io.Discard, log)
			s.ended(ctx, log, err, "pings", pings)
		})
	}
}

// pingpong answers a ping-pong client.
func (s *server) pingpong(ctx context.Context, conn net.Conn, prove func()) {
	log := s.node.Log.With("service", "pingpong", "peer", conn.RemoteAddr())
	log.Info("connection")
	messages, err := pingpong.Answer(ctx, s.node, conn, prove, s.MaxSize, s.PathMTU, s.Idle)
	s.ended(ctx, log, err, "messages", messages)
}
