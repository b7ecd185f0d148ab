package rdmatransport_test

import (
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestCloseIDOfConnection checks that closing the ID of a connection keeps the QP that UseQP
// assigned to it. An iWARP QP is then in ERR, because its stream is closed, and its requests are
// flushed. A RoCE QP stays as it is, without an ID.
func TestCloseIDOfConnection(t *testing.T) { overMedia(t, closeIDOfConnection) }

func closeIDOfConnection(t *testing.T, m medium) {
	for transport, want := range map[verbs.Transport]verbs.QPState{verbs.RoCEv2: verbs.StateRTS, verbs.IWARP: verbs.StateErr} {
		t.Run(transport.String(), func(t *testing.T) {
			a, b := m.stations(t, nil)
			l := must(rdmacm.Listen(b.dev, b.at(7471), &rdmacm.Config{Transport: transport, PD: b.pd}))(t)
			defer l.Close()
			go func() {
				if c, err := l.Accept(t.Context()); err == nil {
					<-c.Done()
					c.Close()
				}
			}()
			cq := must(a.dev.CreateCQ(4, nil))(t)
			qp := must(a.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: transport, SendCQ: cq,
				RecvCQ: cq, Cap: verbs.QPCap{MaxRecvWR: 1}}))(t)
			id := must(rdmacm.CreateSyncID(rdmacm.TCP, a.dev))(t)
			ok(t, id.SetTransports(transport))
			ok(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(b.at(7471))))
			ok(t, id.ResolveRoute(t.Context()))
			ok(t, id.UseQP(qp))
			ok(t, qp.PostRecv(&verbs.RecvWR{}))
			ok(t, id.Connect(t.Context(), nil))
			ok(t, id.Close())
			if s := qp.State(); s != want {
				t.Errorf("the QP is in %v, want %v", s, want)
			}
			if want == verbs.StateErr {
				if wc := poll(t, cq); wc.Status != verbs.WCWRFlushErr {
					t.Errorf("the receive request completes with %v", wc.Status)
				}
			}
			ok(t, qp.Close())
			ok(t, cq.Close())
		})
	}
}

// TestCloseIDOfEndedConnection checks that closing the ID of an ended connection does not
// affect the QP, which has a new connection by then.
func TestCloseIDOfEndedConnection(t *testing.T) { overMedia(t, closeIDOfPast) }

func closeIDOfPast(t *testing.T, m medium) {
	a, b := m.stations(t, nil)
	l := must(rdmacm.Listen(b.dev, b.at(7471), &rdmacm.Config{Transport: verbs.IWARP, PD: b.pd}))(t)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			go func() {
				<-c.Done()
				c.Close()
			}()
		}
	}()
	cq := must(a.dev.CreateCQ(4, nil))(t)
	qp := must(a.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: verbs.IWARP, SendCQ: cq, RecvCQ: cq}))(t)
	connect := func() *rdmacm.SyncID {
		id := must(rdmacm.CreateSyncID(rdmacm.TCP, a.dev))(t)
		ok(t, id.SetTransports(verbs.IWARP))
		ok(t, id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort(b.at(7471))))
		ok(t, id.ResolveRoute(t.Context()))
		ok(t, id.UseQP(qp))
		ok(t, id.Connect(t.Context(), nil))
		return id
	}
	past := connect()
	ok(t, past.Disconnect(t.Context()))
	ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
	id := connect()
	ok(t, past.Close())
	if s := qp.State(); s != verbs.StateRTS {
		t.Errorf("the QP is in %v, want RTS: it has a new connection", s)
	}
	ok(t, id.Close())
	ok(t, qp.Close())
	ok(t, cq.Close())
}
