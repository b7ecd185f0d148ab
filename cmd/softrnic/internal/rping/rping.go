// Package rping is `softrnic rping`: librdmacm's rping, client and server.
package rping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
)

// Command is rping, with its options, defaults, output, and bytes on the wire.
type Command struct {
	Server bool `short:"s" xor:"side" help:"Be the server."`
	Client bool `short:"c" xor:"side" help:"Be the client; needs -a."`

	Address    string       `short:"a" placeholder:"ADDRESS" help:"Client: the server's address or name. Server: the address to listen on; default: all addresses of the node."`
	Source     *node.IPAddr `short:"I" placeholder:"IP" help:"Client: the source address."`
	Port       uint16       `short:"p" type:"port" default:"7174" help:"Port in the RDMA TCP port space. Default: 7174."`
	Size       int          `short:"S" default:"64" placeholder:"BYTES" help:"Ping size, 26 to 65535. Default: 64."`
	Count      int          `short:"C" default:"0" help:"Client: number of pings. Default: no limit."`
	Verbose    bool         `short:"v" help:"Print the ping data."`
	Validate   bool         `short:"V" name:"validate" help:"Client: verify the data that the server returns."`
	Debug      bool         `short:"d" help:"Log each step to stderr."`
	Persistent bool         `short:"P" help:"Server: serve any number of clients, until interrupted."`

	Transport node.Transport `default:"rocev2" placeholder:"PROTOCOL" help:"Wire protocol: rocev2 or iwarp. Default: rocev2."`
	running.Flags
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `Either -s (the server) or -c -a ADDRESS (a client) must be given. The client offers a buffer with text. The server READs it, and
WRITEs it to another buffer of the client. Either side may be the real rping (from rdmacm-utils).

  softrnic rping -s --link tap:rnic0,bridge=br0 --addr 10.0.0.9/24        here
  rping -c -a 10.0.0.9 -v -C 10                                           on the Linux machine`
}

// Limits of a ping's size. It has room for the first words and the NUL, and is below the 64 KiB of
// rping's server.
const (
	minPing = 26
	maxPing = 1<<16 - 1
)

// AfterApply implements kong's check after parsing. The method cannot be named Validate, as that is
// a flag.
func (c *Command) AfterApply() error {
	switch {
	case !c.Server && !c.Client:
		return cli.Usagef("no role: use -s for the server or -c -a ADDRESS for the client")
	case c.Size < minPing || c.Size > maxPing:
		return cli.Usagef("--size %d: must be %d to %d", c.Size, minPing, maxPing)
	case c.Count < 0:
		return cli.Usagef("--count %d: must be 0 (no end) or more", c.Count)
	case c.Client && c.Address == "":
		return cli.Usagef("-c needs the server's address: use -a ADDRESS")
	}
	return nil
}

// Run runs the client or the server.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	if c.Debug {
		c.Log = slog.LevelDebug
	}
	return c.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error {
		if c.Client {
			return c.ping(ctx, e, n)
		}
		c.HintWithoutAddr(n)
		return c.serve(ctx, e, n)
	})
}

func (c *Command) ping(ctx context.Context, e *cli.Env, n *node.Node) (err error) {
	cfg := &rdmacm.Config{Transport: c.Transport.Transport, Param: connParam()}
	if c.Source != nil {
		cfg.LocalAddr = netip.AddrPortFrom(c.Source.Addr, 0)
	}
	s, err := newSide(n.Dev, c.Size, n.Log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if s.conn, err = rdmacm.Dial(ctx, n.Dev, net.JoinHostPort(c.Address, strconv.Itoa(int(c.Port))), s.config(cfg)); err != nil {
		return err
	}
	return sayDisconnect(e.Stderr, "client", s.client(ctx, c, e.Text()))
}

// sayDisconnect returns nil and prints a message if err is the peer's disconnection, and else
// returns err.
func sayDisconnect(w io.Writer, side string, err error) error {
	if errors.Is(err, errDisconnected) {
		fmt.Fprintf(w, "%s DISCONNECT EVENT...\n", side)
	}
	if Goodbye(err) {
		return nil
	}
	return err
}

func (c *Command) serve(ctx context.Context, e *cli.Env, n *node.Node) error {
	l, err := rdmacm.Listen(n.Dev, net.JoinHostPort(c.Address, strconv.Itoa(int(c.Port))),
		&rdmacm.Config{Transport: c.Transport.Transport, Backlog: Backlog})
	if err != nil {
		return err
	}
	n.Log.Debug("listening", "addr", l.Addr())
	show := io.Discard
	if c.Verbose {
		show = e.Text()
	}
	serve := func(r *rdmacm.Request) error {
		_, err := Answer(ctx, r, func() {}, show, n.Log)
		return sayDisconnect(e.Stderr, "server", err)
	}
	if !c.Persistent {
		r, err := l.Request(ctx)
		if err == nil {
			err = serve(r)
		}
		return errors.Join(err, l.Close())
	}
	var clients sync.WaitGroup
	for {
		r, err := l.Request(ctx)
		if err != nil {
			err = errors.Join(err, l.Close())
			clients.Wait()
			return err
		}
		clients.Go(func() {
			if err := serve(r); err != nil && ctx.Err() == nil {
				fmt.Fprintf(e.Stderr, "%v: %v\n", r.PeerAddr(), err)
			}
		})
	}
}

const Backlog = 1024

// connParam returns rping's connection parameters.
func connParam() *rdmacm.ConnParam {
	return &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
}
