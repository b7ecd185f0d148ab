package rsocket_test

import (
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// both runs a test over both transports.
func both(t *testing.T, f func(t *testing.T, transport verbs.Transport)) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) { f(t, transport) })
	}
}

// open opens a device on a network. The device is closed at the end of the test.
func open(t testing.TB, port link.Link, addrs ...string) *verbs.Device {
	t.Helper()
	return openWith(t, port, &netstack.Config{Addrs: addrs})
}

func openWith(t testing.TB, port link.Link, cfg *netstack.Config) *verbs.Device {
	t.Helper()
	host, err := netstack.New(port, cfg)
	ok(t, err)
	dev, err := rdmatransport.Open(host, nil)
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

// serverAt is the server's address.
var serverAt = netip.MustParsePrefix(server).Addr()

// overAll runs a test over the selected media and both transports, in parallel with other tests.
func overAll(t *testing.T, f func(t *testing.T, m stacktest.Medium, transport verbs.Transport)) {
	stacktest.Over(t, func(t *testing.T, m stacktest.Medium) {
		both(t, func(t *testing.T, transport verbs.Transport) { f(t, m, transport) })
	})
}

// TestMedia: tests that do not run over all media are in the list, with a reason.
func TestMedia(t *testing.T) { stacktest.CheckList(t, "overAll") }

// devices opens two devices on a network of their own. They are closed at the end of the test. at
// is the address of the first.
func devices(t *testing.T, m stacktest.Medium) (to, from *verbs.Device, at netip.Addr) {
	t.Helper()
	var devs [2]*verbs.Device
	a, b := m.Hosts(t)
	for i, end := range []stacktest.End{a, b} {
		dev, err := rdmatransport.Open(end.Host, nil)
		ok(t, err)
		t.Cleanup(func() {
			dev.Close()
			end.Host.Close()
		})
		devs[i] = dev
	}
	return devs[0], devs[1], a.Addr
}

// connect connects two devices.
func connect(from, to *verbs.Device, at netip.Addr, cfg *rsocket.Config) (a, b *rsocket.Conn, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	l, err := rsocket.Listen(to, netip.AddrPortFrom(at, 0).String(), cfg)
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	dialled := make(chan error, 1)
	go func() {
		var err error
		a, err = rsocket.Dial(ctx, from, l.Addr().String(), cfg)
		dialled <- err
	}()
	if b, err = l.AcceptContext(ctx); err != nil {
		return nil, nil, err
	}
	return a, b, <-dialled
}

// pair returns two connected sockets. They are closed at the end of the test.
func pair(t *testing.T, m stacktest.Medium, cfg *rsocket.Config) (a, b *rsocket.Conn) {
	t.Helper()
	to, from, at := devices(t, m)
	a, b, err := connect(from, to, at, cfg)
	ok(t, err)
	t.Cleanup(func() {
		a.Close()
		b.Close()
	})
	return a, b
}

func TestNet(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			a, b, err := connect(from, to, at, &rsocket.Config{Transport: transport})
			return a, b, func() {
				a.Close()
				b.Close()
			}, err
		})
		for _, dev := range []*verbs.Device{to, from} {
			if r := dev.Resources(); r.QP != 0 || r.CQ != 0 || r.MR != 0 || r.PD > 1 {
				t.Errorf("leaked: %+v", r)
			}
		}
	})
}
