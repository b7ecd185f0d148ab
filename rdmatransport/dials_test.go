package rdmatransport_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestRedial dials over RoCE from the port of a connection that has just ended. The new connection
// is established at once, whichever side closed the old one.
func TestRedial(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) { redial(t, m, verbs.RoCEv2) })
}

// TestRedialIWARP is TestRedial over iWARP.
func TestRedialIWARP(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) { redial(t, m, verbs.IWARP) })
}

func redial(t *testing.T, m medium, transport verbs.Transport) {
	a, b := m.stations(t, nil)
	l := must(rdmacm.Listen(b.dev, b.at(7471), &rdmacm.Config{Transport: transport, PD: b.pd}))(t)
	defer l.Close()
	from, to := a.reg(make([]byte, 1<<20), everyAccess), b.reg(make([]byte, 1<<20), everyAccess)
	for i := range 6 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // far less than a TIME-WAIT
		defer cancel()
		accepted := make(chan *rdmacm.Conn, 1)
		go func() {
			c, _ := l.Accept(ctx)
			accepted <- c
		}()
		c, err := rdmacm.Dial(ctx, a.dev, b.at(7471), &rdmacm.Config{
			Transport: transport, PD: a.pd, LocalAddr: netip.AddrPortFrom(a.addr, 40000),
		})
		if err != nil {
			t.Fatalf("dial %d: %v", i, err)
		}
		s := <-accepted
		if s == nil {
			t.Fatalf("dial %d is not accepted", i)
		}
		ok(t, c.QP().PostSend(&verbs.SendWR{
			Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{from.SGE(0, 1<<20)},
			RemoteAddr: to.Addr(), RKey: to.RKey(),
		}))
		if wc := poll(t, c.SendCQ()); wc.Status != verbs.WCSuccess {
			t.Fatal(wc.Status)
		}
		first, second := s, c
		if i%2 == 1 {
			first, second = c, s
		}
		ok(t, first.Close())
		<-second.Done()
		ok(t, second.Close())
	}
}

// TestDials checks that no dial fails after many earlier connections over each protocol, and that
// connections leak nothing.
func TestDials(t *testing.T) {
	n := stacktest.Size(250, 1000, 100_000)
	both(t, func(t *testing.T, transport verbs.Transport) {
		lan := new(pipe.Switch)
		a, b := newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
		size := verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}
		l := must(rdmacm.Listen(b.dev, ":7471", &rdmacm.Config{Transport: transport, PD: b.pd, Cap: size}))(t)
		defer l.Close()
		accepted := make(chan *rdmacm.Conn)
		go func() {
			for {
				c, err := l.Accept(t.Context())
				if err != nil {
					close(accepted)
					return
				}
				accepted <- c
			}
		}()
		before := memory()
		for i := range n {
			c, err := rdmacm.Dial(t.Context(), a.dev, "10.0.0.2:7471", &rdmacm.Config{Transport: transport, PD: a.pd, Cap: size})
			if err != nil {
				t.Fatalf("dial %d: %v", i, err)
			}
			s, up := <-accepted
			if !up {
				t.Fatalf("dial %d is not accepted", i)
			}
			first, second := c, s
			if i%2 == 1 {
				first, second = s, c
			}
			if err := first.Close(); err != nil {
				t.Fatalf("close %d: %v", i, err)
			}
			<-second.Done()
			if err := second.Close(); err != nil {
				t.Fatalf("close %d: %v", i, err)
			}
		}
		// TCP keeps up to 8192 connections in TIME-WAIT on each host.
		if grown, most := memory()-before, min(n, 1024)*16<<10+2*min(n, 8192)*10<<10; grown > most {
			t.Errorf("the heap grew by %d bytes, want at most %d", grown, most)
		}
	})
}
