package rsocket_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rsocket"
)

// both runs a test over either transport.
func both(t *testing.T, f func(t *testing.T, transport verbs.Transport)) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) { f(t, transport) })
	}
}

// open opens a device on a network until the end of the test.
func open(t *testing.T, port link.Link, addr string, opts ...netstack.Option) *verbs.Device {
	t.Helper()
	host, err := netstack.New(port, append(opts, netstack.Addr(addr))...)
	ok(t, err)
	dev, err := rdmatransport.Open(host)
	ok(t, err)
	t.Cleanup(func() {
		dev.Close()
		host.Close()
	})
	return dev
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const server, client = "10.0.0.1/24", "10.0.0.2/24"

// connect connects two devices.
func connect(from, to *verbs.Device, at string, cfg *rsocket.Config) (a, b *rsocket.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l, err := rsocket.Listen(to, ":0", cfg)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	dialled := make(chan error, 1)
	go func() {
		var err error
		to := netip.AddrPortFrom(netip.MustParsePrefix(at).Addr(), netip.MustParseAddrPort(l.Addr().String()).Port())
		a, err = rsocket.Dial(ctx, from, to.String(), cfg)
		dialled <- err
	}()
	if b, err = l.AcceptContext(ctx); err != nil {
		return nil, nil, err
	}
	return a, b, <-dialled
}

// pair is two connected sockets, until the end of the test.
func pair(t *testing.T, cfg *rsocket.Config) (a, b *rsocket.Conn) {
	t.Helper()
	lan := new(pipe.Switch)
	to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
	a, b, err := connect(from, to, server, cfg)
	ok(t, err)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

func TestNet(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		lan := new(pipe.Switch)
		to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			a, b, err := connect(from, to, server, &rsocket.Config{Transport: transport})
			return a, b, func() {
				a.Close()
				b.Close()
			}, err
		})
		for _, dev := range []*verbs.Device{to, from} {
			if r := dev.Resources(); r.QP != 0 || r.CQ != 0 || r.MR != 0 || r.PD > 1 {
				t.Errorf("left behind: %+v", r)
			}
		}
	})
}
