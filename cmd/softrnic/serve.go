package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// serveCmd is a node that answers whatever a lab's other machines try on it.
type serveCmd struct {
	RpingPort    uint16        `type:"port" default:"7174" help:"Port of rping. Default: 7174."`
	PingpongPort uint16        `type:"port" default:"18515" help:"TCP port of ibv_rc_pingpong. Default: 18515."`
	PathMTU      int           `name:"path-mtu" default:"1024" enum:"256,512,1024,2048,4096" placeholder:"BYTES" help:"Path MTU of ping-pongs, the client's -m: 256, 512, 1024, 2048 or 4096. Default: 1024."`
	MaxSize      int           `default:"1048576" placeholder:"BYTES" help:"Largest message of a ping-pong. Default: 1048576."`
	Transport    []transport   `default:"rocev2,iwarp" placeholder:"PROTOCOL" help:"Wire protocols of rping: rocev2, iwarp. Default: both. Ping-pongs are RoCEv2."`
	Idle         time.Duration `default:"30s" help:"A ping-pong is over when nothing came for so long: its client does not say so. Default: 30s."`

	nodeFlags
}

// Help implements kong.HelpProvider.
func (*serveCmd) Help() string {
	return `Each connection is logged to stderr. An interrupt ends them all, and removes what the node created.

  softrnic serve --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24           here
  ping 10.0.0.9                                                           on the Linux machine
  ibv_rc_pingpong -d rxe0 -g 1 10.0.0.9
  rping -c -a 10.0.0.9 -v -C 10`
}

// Validate implements kong's check after parsing.
func (c *serveCmd) Validate() error {
	if c.MaxSize < 1 || c.MaxSize > 1<<30 {
		return fmt.Errorf("--max-size %d: give 1 to %d", c.MaxSize, 1<<30)
	}
	if c.PingpongPort == c.RpingPort && slices.Contains(c.Transport, transport{verbs.IWARP}) {
		return fmt.Errorf("--pingpong-port %d is --rping-port too: over iWARP rping needs a TCP port of its own: give another", c.PingpongPort)
	}
	return nil
}

// Run serves until ctx ends, which is what it is to do.
func (c *serveCmd) Run(ctx context.Context, e *env) error {
	c.Log = min(c.Log, slog.LevelInfo)
	return c.runForPeer(ctx, e, c.serve)
}

func (c *serveCmd) serve(ctx context.Context, n *node) error {
	c.hintWithoutAddr(n)
	s := &server{serveCmd: c, node: n}
	cfg := &rdmacm.Config{Backlog: rpingBacklog}
	for _, t := range c.Transport {
		cfg.Transports = append(cfg.Transports, t.Transport)
	}
	rping, err := rdmacm.Listen(n.dev, fmt.Sprintf(":%d", c.RpingPort), cfg)
	if err != nil {
		return fmt.Errorf("--rping-port %d: %w", c.RpingPort, err)
	}
	pingpong, err := n.host.ListenStream(netip.AddrPortFrom(netip.Addr{}, c.PingpongPort))
	if err != nil {
		return errors.Join(fmt.Errorf("--pingpong-port %d: %w", c.PingpongPort, err), rping.Close())
	}
	n.log.Info("serving", "addrs", n.host.NICs()[0].GIDs(), "rping", c.RpingPort, "pingpong", c.PingpongPort)

	serving, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	context.AfterFunc(serving, func() { _ = pingpong.Close() })
	s.work.Go(func() { cancel(s.rpings(serving, rping)) })
	s.work.Go(func() { cancel(s.pingpongs(serving, pingpong)) })
	s.work.Wait()
	n.log.Info("stopped")
	if ctx.Err() == nil { // nobody has asked for it
		err = context.Cause(serving)
	}
	return errors.Join(err, rping.Close())
}

// server is a node that serves.
type server struct {
	*serveCmd
	node *node
	work sync.WaitGroup
}

// ended logs the end of a connection.
func (s *server) ended(ctx context.Context, log *slog.Logger, err error, args ...any) {
	switch {
	case err == nil, goodbye(err):
		log.Info("done", args...)
	case ctx.Err() != nil:
		log.Info("interrupted", args...)
	default:
		log.Warn("failed", append(args, "error", err)...)
	}
}

// rpings answers rpings until it fails to hear of one.
func (s *server) rpings(ctx context.Context, l *rdmacm.Listener) error {
	for {
		r, err := l.Request(ctx)
		if err != nil {
			return err
		}
		s.work.Go(func() {
			log := s.node.log.With("service", "rping", "peer", r.PeerAddr(), "transport", r.Transport())
			log.Info("connection")
			pings, err := serveRping(ctx, r, io.Discard, log)
			s.ended(ctx, log, err, "pings", pings)
		})
	}
}

// pingpongs answers ping-pongs until it fails to hear of one.
func (s *server) pingpongs(ctx context.Context, l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		s.work.Go(func() {
			log := s.node.log.With("service", "pingpong", "peer", conn.RemoteAddr())
			log.Info("connection")
			messages, err := s.pingpong(ctx, conn)
			s.ended(ctx, log, err, "messages", messages)
		})
	}
}

// exchangeTimeout bounds how long a client may take to say where its QP is.
const exchangeTimeout = 10 * time.Second

// pingpong sends one client's messages back until no more come.
func (s *server) pingpong(ctx context.Context, conn net.Conn) (messages int, err error) {
	p, err := newPinger(s.node, &pingpongFlags{IBPort: 1, Size: s.MaxSize, RxDepth: 64}, rcKind(s.PathMTU))
	if err != nil {
		return 0, errors.Join(err, conn.Close())
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return 0, errors.Join(err, conn.Close())
	}
	if err := answerExchange(ctx, conn, len(p.local), func(remote []dest) ([]dest, error) {
		if err := p.choose(remote[0].gid.Addr()); err != nil {
			return nil, err
		}
		return p.local, p.connect(remote)
	}); err != nil {
		return 0, err
	}
	return p.echo(ctx, s.Idle)
}

// echo sends back what is received until nothing comes for a time: how clients end. It returns how much there was.
func (p *pinger) echo(ctx context.Context, patience time.Duration) (messages int, err error) {
	var owed []int // lengths of what waits until the send before it is done
	sending := false
	for {
		idle, cancel := context.WithTimeout(ctx, patience)
		var wcs [8]verbs.WC
		n, err := p.cq.wait(idle, wcs[:])
		over := idle.Err() != nil && ctx.Err() == nil && messages > 0
		cancel()
		if err != nil {
			if over {
				err = nil
			}
			return messages, err
		}
		for i := range wcs[:n] {
			switch wcs[i].WRID {
			case pingSend:
				sending = false
			case pingRecv:
				messages++
				p.received(&wcs[i])
				owed = append(owed, int(wcs[i].ByteLen))
				if err := p.postRecvs(1); err != nil {
					return messages, err
				}
			}
		}
		if len(owed) > 0 && !sending {
			if err := p.postSend(0, owed[0]); err != nil {
				return messages, err
			}
			owed, sending = owed[1:], true
		}
	}
}
