// Package proxy is `softrnic proxy`: it forwards connections between TCP and rsockets, and between
// rsockets of two wire protocols.
package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// Command is the proxy, with its options.
type Command struct {
	From Endpoint `arg:"" placeholder:"FROM" help:"Where to listen: tcp, rocev2 or iwarp, then +tls or nothing, then :HOST:PORT or :PORT. TCP is the machine's own, the other two are the node's."`
	To   Endpoint `arg:"" placeholder:"TO" help:"Where to connect to, for each connection that comes: likewise, with HOST."`

	Timeout time.Duration `short:"w" default:"10s" placeholder:"TIME" help:"How long to try to connect, and to wait for the other side of TLS. Default: 10s."`
	Limit   *int          `placeholder:"N" help:"Connections at a time, each with about 1 MiB of memory. A client has at most half of what the others leave; more are refused. Default: 1024 from TCP, and otherwise 4096, so that the client may be another proxy with all of its connections."`

	Cert       string `type:"path" placeholder:"FILE" help:"TLS: the certificate, and those that it was signed with, in PEM; of FROM if that has TLS, otherwise to show to TO."`
	Key        string `type:"path" placeholder:"FILE" help:"TLS: the key of --cert, in PEM, which only its owner may read."`
	ClientCA   string `type:"path" name:"client-ca" placeholder:"FILE" help:"TLS of FROM: a client must have a certificate that was signed with one of these."`
	CA         string `type:"path" name:"ca" placeholder:"FILE" help:"TLS of TO: its certificate must have been signed with one of these. Default: the machine's."`
	ServerName string `name:"server-name" placeholder:"NAME" help:"TLS of TO: the name in its certificate. Default: the HOST of TO."`

	running.Flags
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `The proxy accepts connections at FROM and forwards each to TO, until it is interrupted. The two halves of a connection end separately.
--metrics also has the proxy's own metrics: softrnic_proxy_connections, softrnic_proxy_accepted_connections_total,
softrnic_proxy_failed_connections_total and softrnic_proxy_bytes_total.

In this example the first proxy makes a web server available over RDMA. The second is for clients that have only TCP:

  softrnic proxy --link shm --addr 10.83.0.1/24 rocev2:7471 tcp:127.0.0.1:80
  softrnic proxy --link shm --addr 10.83.0.2/24 tcp:127.0.0.1:8080 rocev2:10.83.0.1:7471`
}

// Validate implements kong's check after parsing.
func (c *Command) Validate() error {
	switch {
	case c.From.transport == nil && c.To.transport == nil:
		return errors.New("from TCP to TCP there is nothing for RDMA to do: one of the two must be rocev2 or iwarp")
	case c.To.host() == "":
		return fmt.Errorf("%s: the host to connect to is missing", c.To.text)
	case c.From.tls && (c.Cert == "" || c.Key == ""):
		return fmt.Errorf("%s: TLS needs --cert and --key", c.From.text)
	case (c.Cert == "") != (c.Key == ""):
		return errors.New("--cert and --key must be used together")
	case c.Cert != "" && !c.From.tls && !c.To.tls:
		return errors.New("--cert: neither side has TLS: add +tls to its protocol")
	case c.ClientCA != "" && !c.From.tls:
		return fmt.Errorf("--client-ca: %s has no TLS: add +tls to its protocol", c.From.text)
	case (c.CA != "" || c.ServerName != "") && !c.To.tls:
		return fmt.Errorf("--ca and --server-name: %s has no TLS: add +tls to its protocol", c.To.text)
	case c.Timeout <= 0:
		return fmt.Errorf("-w %v: must be more than 0", c.Timeout)
	case c.Limit != nil && *c.Limit < 1:
		return fmt.Errorf("--limit %d: must be at least 1", *c.Limit)
	}
	return nil
}

// limit returns the number of connections at a time.
func (c *Command) limit() int {
	switch {
	case c.Limit != nil:
		return *c.Limit
	case c.From.transport == nil:
		return 1024
	}
	return 4096
}

// Run forwards connections until ctx ends, and then returns nil.
func (c *Command) Run(ctx context.Context, e *cli.Env) error {
	server, client, err := c.tlsConfigs()
	if err != nil {
		return err
	}
	p := &proxy{Command: c, server: server, client: client, counters: relay.NewCounters("proxy")}
	c.Collector = p.counters
	return c.RunNodeForPeer(ctx, e, func(ctx context.Context, n *node.Node) error {
		if c.From.transport != nil {
			c.HintWithoutAddr(n)
		}
		p.node = n
		l, err := c.From.listen(ctx, n)
		if err != nil {
			return err
		}
		fmt.Fprintf(e.Text(), "from %s to %s\n", c.From.name(l.Addr()), c.To.text)
		return accept.Serve(ctx, l, c.Limits.Gate("proxy", c.limit()), n.Log, p.forward)
	})
}

// proxy is a running proxy.
type proxy struct {
	*Command
	node           *node.Node
	server, client *tls.Config
	counters       *relay.Counters
}

// forward forwards one connection, and reports its error.
func (p *proxy) forward(ctx context.Context, conn net.Conn, prove func()) {
	p.counters.Accepted.Add(1)
	if err := p.pass(ctx, conn, prove); err != nil && ctx.Err() == nil {
		p.counters.Failed.Add(1)
		p.node.Log.Warn("a connection has failed", "from", conn.RemoteAddr(), "error", err)
	}
}

// pass forwards one connection until both halves have ended. If one fails or the proxy ends, both
// sides get an error instead of an end of the stream. Otherwise they would take partial data for
// the whole.
func (p *proxy) pass(ctx context.Context, raw net.Conn, prove func()) (err error) {
	near := raw
	defer func() { _ = near.Close() }()
	defer context.AfterFunc(ctx, func() { relay.Abort(raw) })()
	connecting, cancel := context.WithTimeout(ctx, p.Timeout)
	defer cancel()
	if p.server != nil {
		secure := tls.Server(raw, p.server)
		if err := secure.HandshakeContext(connecting); err != nil {
			return fmt.Errorf("TLS: %w", err)
		}
		near = secure
	}
	far, err := p.To.dial(connecting, p.node, p.client)
	if err != nil {
		relay.Abort(raw)
		return err
	}
	defer func() { _ = far.Close() }()
	prove()
	return p.counters.Relay(ctx, near, far)
}
