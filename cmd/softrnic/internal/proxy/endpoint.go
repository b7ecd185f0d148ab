package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Endpoint is a side of the proxy on the command line: PROTOCOL[+tls]:HOST:PORT.
type Endpoint struct {
	transport *verbs.Transport // nil: TCP
	tls       bool
	addr      string
	text      string
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Endpoint) UnmarshalText(text []byte) error {
	const want = "must be tcp, rocev2 or iwarp, then optionally +tls, then :HOST:PORT"
	p.text = string(text)
	protocol, addr, _ := strings.Cut(p.text, ":")
	protocol, p.tls = strings.CutSuffix(protocol, "+tls")
	if !strings.EqualFold(protocol, "tcp") {
		var t node.Transport
		if err := t.UnmarshalText([]byte(protocol)); err != nil {
			return fmt.Errorf("%q: %s", p.text, want)
		}
		p.transport = &t.Transport
	}
	if !strings.Contains(addr, ":") {
		addr = ":" + addr
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return fmt.Errorf("%q: %s", p.text, want)
	}
	p.addr = addr
	return nil
}

func (p *Endpoint) host() string {
	host, _, _ := net.SplitHostPort(p.addr)
	return host
}

// name returns the endpoint's name with its actual address.
func (p *Endpoint) name(addr net.Addr) string {
	protocol, _, _ := strings.Cut(p.text, ":")
	return protocol + ":" + addr.String()
}

// keepAlive is the idle time before an rsocket sends a keepalive probe. Go's default for TCP is 15
// seconds too.
const keepAlive = 15 * time.Second

func (p *Endpoint) config() *rsocket.Config {
	return &rsocket.Config{Transport: *p.transport, KeepAlive: keepAlive}
}

// listen listens for connections, without TLS.
func (p *Endpoint) listen(ctx context.Context, n *node.Node) (net.Listener, error) {
	if p.transport == nil {
		return new(net.ListenConfig).Listen(ctx, "tcp", p.addr)
	}
	return rsocket.Listen(n.Dev, p.addr, p.config())
}

// dial connects, with TLS if the endpoint has it.
func (p *Endpoint) dial(ctx context.Context, n *node.Node, cfg *tls.Config) (conn net.Conn, err error) {
	if p.transport == nil {
		conn, err = new(net.Dialer).DialContext(ctx, "tcp", p.addr)
	} else {
		conn, err = node.Conn(rsocket.Dial(ctx, n.Dev, p.addr, p.config()))
	}
	if err != nil || !p.tls {
		return conn, err
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS with %s: %w", p.text, errors.Join(err, conn.Close()))
	}
	return secure, nil
}

// tlsConfigs returns the configurations of both sides. That of a side without TLS is nil.
func (c *Command) tlsConfigs() (server, client *tls.Config, err error) {
	if c.From.tls {
		cert, err := node.ReadKeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, nil, fmt.Errorf("--cert and --key: %w", err)
		}
		server = &tls.Config{Certificates: []tls.Certificate{cert}}
		if c.ClientCA != "" {
			if server.ClientCAs, err = readPool("--client-ca", c.ClientCA); err != nil {
				return nil, nil, err
			}
			server.ClientAuth = tls.RequireAndVerifyClientCert
		}
	}
	if c.To.tls {
		client = &tls.Config{ServerName: cmp.Or(c.ServerName, c.To.host())}
		if c.CA != "" {
			if client.RootCAs, err = readPool("--ca", c.CA); err != nil {
				return nil, nil, err
			}
		}
		if c.Cert != "" && !c.From.tls {
			cert, err := node.ReadKeyPair(c.Cert, c.Key)
			if err != nil {
				return nil, nil, fmt.Errorf("--cert and --key: %w", err)
			}
			client.Certificates = []tls.Certificate{cert}
		}
	}
	return server, client, nil
}

func readPool(flag, file string) (*x509.CertPool, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s: %s has no certificate in PEM", flag, file)
	}
	return pool, nil
}
