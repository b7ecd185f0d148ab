// Package nc is `softrnic nc`: a byte pipe over an rsocket, like nc(1) over TCP.
package nc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// Command is nc over RDMA, with its options.
type Command struct {
	Peer []string `arg:"" name:"host-port" placeholder:"[HOST] PORT" help:"HOST PORT to connect to. With -l: PORT, or HOST PORT, to listen on."`

	Listen  bool          `short:"l" help:"Listen for one connection."`
	Keep    bool          `short:"k" help:"With -l: keep listening after a connection has ended. Standard input is not sent."`
	NoInput bool          `short:"d" help:"Send nothing: do not read standard input."`
	Source  *node.IPAddr  `short:"s" placeholder:"IP" help:"Source address of the connection."`
	Timeout time.Duration `short:"w" default:"10s" placeholder:"TIME" help:"How long to try to connect. Default: 10s."`
	Verbose bool          `short:"v" help:"Print the address of each connected peer to stderr."`

	Transport node.Transport `default:"rocev2" placeholder:"PROTOCOL" help:"Wire protocol: rocev2 or iwarp. Default: rocev2."`
	running.Flags
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `nc sends its standard input to the peer, and writes received data to standard output. At the end of standard input it closes
its side of the connection (half close), and continues to receive. It ends when the peer has closed its side too, or is gone.
With -l, it does not wait for the end of a standard input that is a terminal. The peer may be a program that uses rsockets of
librdmacm.

  softrnic nc -l --link shm 7471 > copy                        here
  softrnic nc --link shm 10.83.0.1 7471 < file                 in another terminal`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	least := 2
	if c.Listen {
		least = 1
	}
	if len(c.Peer) < least || len(c.Peer) > 2 {
		return errors.New("no address: use HOST PORT to connect, or -l [HOST] PORT to listen")
	}
	if n, err := strconv.Atoi(c.Peer[len(c.Peer)-1]); err == nil && (n < 1 || n > 1<<16-1) {
		return fmt.Errorf("%d is not a port: must be 1 to 65535", n)
	}
	switch {
	case c.Keep && !c.Listen:
		return errors.New("-k needs -l")
	case c.Source != nil && c.Listen:
		return errors.New("-s is for connecting: with -l, the address stands before the port")
	case c.Timeout <= 0:
		return fmt.Errorf("-w %v: must be more than 0", c.Timeout)
	}
	return nil
}

// addr returns the address in the arguments.
func (c *Command) addr() string {
	host := ""
	if len(c.Peer) == 2 {
		host = c.Peer[0]
	}
	return net.JoinHostPort(host, c.Peer[len(c.Peer)-1])
}

// Run connects or listens, and copies data.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	return c.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error {
		cfg := &rsocket.Config{Transport: c.Transport.Transport}
		if c.Listen {
			c.HintWithoutAddr(n)
			return c.serve(ctx, e, n, cfg)
		}
		if c.Source != nil {
			cfg.LocalAddr = netip.AddrPortFrom(c.Source.Addr, 0)
		}
		dialling, cancel := context.WithTimeout(ctx, c.Timeout)
		defer cancel()
		conn, err := rsocket.Dial(dialling, n.Dev, c.addr(), cfg)
		if err != nil {
			return err
		}
		return c.talk(ctx, e, conn)
	})
}

// serve accepts one connection, or with -k one after the other.
func (c *Command) serve(ctx context.Context, e *cli.Env, n *node.Node, cfg *rsocket.Config) (err error) {
	l, err := rsocket.Listen(n.Dev, c.addr(), cfg)
	if err != nil {
		return err
	}
	closeListener := sync.OnceValue(l.Close)
	defer func() { err = errors.Join(err, closeListener()) }()
	c.say(e, "listening on %v", l.Addr())
	for {
		conn, err := l.AcceptContext(ctx)
		if err != nil {
			return err
		}
		if !c.Keep {
			_ = closeListener() // again at the end
			return c.talk(ctx, e, conn)
		}
		if err := c.talk(ctx, e, conn); ctx.Err() != nil {
			return err
		} else if err != nil {
			fmt.Fprintf(e.Stderr, "%v: %v\n", conn.RemoteAddr(), err)
		}
	}
}

func (c *Command) say(e *cli.Env, format string, args ...any) {
	if c.Verbose {
		fmt.Fprintf(e.Stderr, format+"\n", args...)
	}
}

// talk copies in both directions, and closes the connection.
func (c *Command) talk(ctx context.Context, e *cli.Env, conn *rsocket.Conn) error {
	c.say(e, "connected to %v from %v", conn.RemoteAddr(), conn.LocalAddr())
	var closing sync.Once
	var closed, aborted error
	hangUp := func() { closing.Do(func() { closed = conn.Close() }) }
	defer context.AfterFunc(ctx, hangUp)()

	sent := make(chan error, 1)
	go func() { // reading standard input cannot be interrupted, so this goroutine may outlive talk
		err := c.send(e, conn)
		if err != nil { // the peer must not take partial data for the whole
			closing.Do(func() {
				aborted = err
				relay.Abort(conn)
			})
		}
		sent <- err // after that, as talk then hangs up
	}()
	_, err := conn.WriteTo(e.Stdout)
	// A peer that has closed the connection, and not only its half, accepts no more input.
	gone := conn.Ready()&rsocket.HungUp != 0
	if err == nil && !gone && !(c.Listen && isTerminal(e.Stdin)) {
		select {
		case err = <-sent:
		case <-ctx.Done():
		}
	}
	hangUp()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(cmp.Or(aborted, err), closed)
}

// send sends standard input. It is no error if the peer has closed the connection meanwhile.
func (c *Command) send(e *cli.Env, conn *rsocket.Conn) error {
	if e.Stdin != nil && !c.NoInput && !c.Keep {
		if _, err := conn.ReadFrom(e.Stdin); errors.Is(err, syscall.EPIPE) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return conn.CloseWrite()
}

func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
