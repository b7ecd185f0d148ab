package rdmatransport_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

const everyAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// both runs a test over both transports.
func both(t *testing.T, f func(t *testing.T, transport verbs.Transport)) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) { f(t, transport) })
	}
}

// station is a device with a PD, on a network of the test.
type station struct {
	t       testing.TB
	addr    netip.Addr
	host    *netstack.Host // nil on another stack
	network stacktest.Host
	dev     *verbs.Device
	pd      *verbs.PD
}

func newStation(t testing.TB, lan *pipe.Switch, addr string) *station {
	t.Helper()
	return newStationOn(t, lan.Port(), addr, nil)
}

func newStationOn(t testing.TB, port link.Link, addr string, cfg *rdmatransport.Config) *station {
	t.Helper()
	host := must(netstack.New(port, &netstack.Config{Addrs: []string{addr}}))(t)
	return stationOf(t, host, netip.MustParsePrefix(addr).Addr(), cfg)
}

// at returns an address at which others dial the station.
func (s *station) at(port uint16) string { return netip.AddrPortFrom(s.addr, port).String() }

// reg registers memory until the end of the test.
func (s *station) reg(buf []byte, access verbs.Access) *verbs.MR {
	s.t.Helper()
	mr := must(s.pd.RegMR(buf, access))(s.t)
	s.t.Cleanup(func() {
		if err := mr.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			s.t.Error(err)
		}
	})
	return mr
}

// dial connects a with b over one transport, until the end of the test. change modifies the
// attributes of b's QP, and may be nil.
func dial(a, b *station, transport verbs.Transport, change func(*rdmacm.Config)) (onA, onB *rdmacm.Conn) {
	t := a.t
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	size := verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}
	server := &rdmacm.Config{Transport: transport, PD: b.pd, Cap: size}
	if change != nil {
		change(server)
	}
	l := must(rdmacm.Listen(b.dev, ":0", server))(t)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		var err error
		onB, err = l.Accept(ctx)
		accepted <- err
	}()
	onA = must(rdmacm.Dial(ctx, a.dev, b.at(l.Addr().Port()), &rdmacm.Config{Transport: transport, PD: a.pd, Cap: size}))(t)
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		onA.Close()
		onB.Close()
	})
	return onA, onB
}

// event returns the device's next asynchronous event.
func (s *station) event() verbs.AsyncEvent {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	return must(s.dev.GetAsyncEvent(ctx))(s.t)
}

// must returns v, and ends the test on an error.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
