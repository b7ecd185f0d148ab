package rdmacm_test

import (
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

func TestDisconnectUnanswered(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		l, s, c := connected(a, b)
		a.fake.loseDREQ = true
		must(t, c.Disconnect())
		must(t, c.Disconnect()) // has no effect
		if ev := b.next(rdmacm.Disconnected); ev.Status != -int(syscall.ETIMEDOUT) {
			t.Errorf("status %d, want -ETIMEDOUT", ev.Status)
		}
		b.close(c)
		a.close(s, l)
	})
}

// Like rdma_disconnect, Disconnect flushes the QP of an accepted connection that is not established
// yet. It sends no message to the peer. If the last message of the peer's handshake arrives later,
// another Disconnect ends the connection.
func TestDisconnectBeforeEstablished(t *testing.T) {
	for _, late := range []bool{true, false} {
		bubble(t, func(t *testing.T, a, b *end) {
			a.fake.loseRTU = true
			l := a.listen(rdmacm.TCP)
			c := b.resolve(rdmacm.TCP, v4A+":7471")
			qp(t, c)
			must(t, c.Connect(nil))
			s := a.next(rdmacm.ConnectRequest).ID
			sq := qp(t, s)
			must(t, sq.PostRecv(&verbs.RecvWR{WRID: 7}))
			must(t, s.Accept(nil))
			b.next(rdmacm.Established)
			must(t, s.Disconnect())
			var wcs [2]verbs.WC
			if n, err := sq.RecvCQ().Poll(wcs[:]); n != 1 || err != nil || wcs[0].Status != verbs.WCWRFlushErr {
				t.Errorf("QP in %v, %d completions, %v", sq.State(), n, err)
			}
			if late {
				must(t, s.Notify())
				a.next(rdmacm.Established)
				must(t, s.Disconnect())
				b.next(rdmacm.Disconnected)
				must(t, c.Disconnect())
				a.next(rdmacm.Disconnected)
			} else {
				a.next(rdmacm.Unreachable)
			}
			b.close(c)
			a.close(s, l)
		})
	}
}

// TestDisconnectInTimeWait: as in Linux, Disconnect of a connection that has ended is not an error
// on either side, until the ID is closed. Without a connection it is an error.
func TestDisconnectInTimeWait(t *testing.T) {
	bubble(t, func(t *testing.T, a, b *end) {
		idle := b.id(rdmacm.TCP)
		wantErr(t, idle.Disconnect(), verbs.ErrInvalid)
		l, s, c := connected(a, b)
		must(t, c.Disconnect())
		a.next(rdmacm.Disconnected)
		must(t, s.Disconnect())
		b.next(rdmacm.Disconnected)
		for range 2 {
			must(t, c.Disconnect())
			must(t, s.Disconnect())
		}
		a.next(rdmacm.TimewaitExit)
		b.next(rdmacm.TimewaitExit)
		must(t, c.Disconnect())
		must(t, s.Disconnect())
		must(t, s.Close())
		wantErr(t, s.Disconnect(), verbs.ErrClosed)
		b.close(c, idle)
		a.close(l)
	})
}
