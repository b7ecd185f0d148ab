package rdmacm_test

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// ownQP creates a QP without an ID, as an application does.
func ownQP(e *end, typ verbs.QPType) *verbs.QP {
	e.Helper()
	pd, err := e.dev.DefaultPD()
	must(e, err)
	cq, err := e.dev.CreateCQ(4, nil)
	must(e, err)
	q, err := pd.CreateQP(&verbs.QPInitAttr{Type: typ, Transport: verbs.RoCEv2, SendCQ: cq, RecvCQ: cq})
	must(e, err)
	return q
}

func destroy(t *testing.T, qps ...*verbs.QP) {
	t.Helper()
	for _, q := range qps {
		must(t, q.Close())
		must(t, q.SendCQ().Close())
	}
}

// TestUseQP: an ID moves a QP of the application through its states like its own, but does not
// destroy it.
func TestUseQP(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		idle := b.id(rdmacm.TCP)
		cq, sq := ownQP(b, verbs.RC), ownQP(a, verbs.RC)
		wantErr(t, idle.UseQP(cq), syscall.EINVAL)
		c := b.resolve(rdmacm.TCP, v4A+":7471")
		wantErr(t, c.UseQP(sq), syscall.EINVAL) // of another device
		uc := ownQP(b, verbs.UC)
		wantErr(t, c.UseQP(uc), syscall.EINVAL)
		destroy(t, uc)
		state := func(q *verbs.QP, want verbs.QPState) {
			t.Helper()
			if got := q.State(); got != want {
				t.Errorf("the QP is in %v, want %v", got, want)
			}
		}
		must(t, c.UseQP(cq))
		state(cq, verbs.StateInit)
		wantErr(t, c.UseQP(cq), syscall.EINVAL)
		wantErr(t, c.CreateQP(nil, &verbs.QPInitAttr{}), syscall.EINVAL)
		must(t, c.UseQP(nil))
		must(t, c.UseQP(cq)) // it is already in INIT
		must(t, c.Connect(nil))
		s := a.next(rdmacm.ConnectRequest).ID
		must(t, s.UseQP(sq))
		must(t, s.Accept(nil))
		state(sq, verbs.StateRTS)
		b.next(rdmacm.Established)
		state(cq, verbs.StateRTS)
		a.next(rdmacm.Established)
		must(t, c.Disconnect())
		state(cq, verbs.StateErr)
		a.next(rdmacm.Disconnected)
		state(sq, verbs.StateRTS)
		must(t, s.Disconnect())
		state(sq, verbs.StateErr)
		must(t, s.CloseQP())
		must(t, c.UseQP(nil))
		destroy(t, sq, cq)
		b.close(c, idle)
		a.close(s, l)
	})
	bubble(t, func(t *testing.T, a, b *end) {
		id := b.id(rdmacm.UDP)
		must(t, id.Bind(netip.MustParseAddrPort(v4B+":0")))
		q := ownQP(b, verbs.UD)
		must(t, id.UseQP(q))
		if q.State() != verbs.StateRTS {
			t.Errorf("a UD QP is in %v, want RTS", q.State())
		}
		must(t, id.JoinMulticast(netip.MustParseAddr("239.0.0.7")))
		b.next(rdmacm.MulticastJoin)
		wantErr(t, q.Close(), syscall.EBUSY)
		must(t, id.UseQP(nil)) // detaches it from the group
		destroy(t, q)
		b.close(id)
		a.close()
	})
}

// TestUseQPAgain: a QP was reset and given to another ID. A late report of the end of its former
// connection does not move it to ERR.
func TestUseQPAgain(t *testing.T) {
	connect := func(t *testing.T, a, b *end, q *verbs.QP) (c, s *rdmacm.ID) {
		c = b.resolve(rdmacm.TCP, v4A+":7471")
		must(t, c.UseQP(q))
		must(t, c.Connect(nil))
		s = a.next(rdmacm.ConnectRequest).ID
		must(t, s.CreateQP(nil, &verbs.QPInitAttr{}))
		must(t, s.Accept(nil))
		b.next(rdmacm.Established)
		a.next(rdmacm.Established)
		return c, s
	}
	reset := func(t *testing.T, q *verbs.QP) {
		must(t, q.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
	}
	inRTS := func(t *testing.T, when string, q *verbs.QP) {
		t.Helper()
		if got := q.State(); got != verbs.StateRTS {
			t.Errorf("%s: the QP is in %v, want RTS", when, got)
		}
	}
	bubble(t, func(t *testing.T, a, b *end) {
		l := a.listen(rdmacm.TCP)
		q := ownQP(b, verbs.RC)
		former, s := connect(t, a, b, q)
		reset(t, q) // for example after the last message
		c, s2 := connect(t, a, b, q)
		must(t, s.Disconnect())
		b.next(rdmacm.Disconnected)
		inRTS(t, "the peer of the former connection has disconnected", q)
		must(t, former.Disconnect())
		inRTS(t, "disconnected", q)
		must(t, former.UseQP(nil))
		must(t, c.Disconnect())
		if got := q.State(); got != verbs.StateErr {
			t.Errorf("the connection has ended: the QP is in %v, want ERR", got)
		}
		a.next(rdmacm.Disconnected)
		a.next(rdmacm.Disconnected)
		must(t, c.UseQP(nil))
		destroy(t, q)
		b.close(former, c)
		a.close(s, s2, l)
	})
	bubble(t, func(t *testing.T, a, b *end) { // the application reconnects the QP without an ID
		l := a.listen(rdmacm.TCP)
		q := ownQP(b, verbs.RC)
		b.fake.loseDREQ = true
		former, s := connect(t, a, b, q)
		must(t, former.Disconnect())
		reset(t, q)
		must(t, q.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
			verbs.QPAttrState|verbs.QPAttrPort|verbs.QPAttrPKeyIndex|verbs.QPAttrAccessFlags))
		b.next(rdmacm.Disconnected)
		if got := q.State(); got != verbs.StateInit {
			t.Errorf("after the disconnect timeout: the QP is in %v, want INIT", got)
		}
		must(t, former.UseQP(nil))
		destroy(t, q)
		b.close(former)
		a.close(s, l)
	})
}
