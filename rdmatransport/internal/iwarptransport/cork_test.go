package iwarptransport_test

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/verbs"
)

// corking returns a connection whose peer acknowledges nothing unless the test allows it. It also
// returns a function that posts n WRITEs of 8 bytes, one by one, each to a different address.
func corking(t *testing.T, n *network) (x, y *session, s *stream, write func(n int)) {
	n.noAcks = true
	a, b := newNode(t, n, nodeAddr, 1<<17, iwarp.Config{}), newNode(t, n, peerAddr, 1<<17, iwarp.Config{})
	x, y = pair(a, b)
	copy(x.buf, pattern(3, len(x.buf)))
	synctest.Wait()
	posted := 0
	return x, y, n.dials[0], func(n int) {
		for range n {
			x.post(&verbs.SendWR{
				Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(8*posted, 8)},
				RKey: y.mr.RKey(), RemoteAddr: y.mr.Addr() + uint64(8*posted),
			})
			posted++
		}
	}
}

// Small requests are sent at once while the peer acknowledges earlier ones. Otherwise they are
// corked. They are sent together when the peer acknowledges more, or when the send queue is full.
func TestSmallRequestsAreCorked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, y, s, write := corking(t, &network{offloaded: true})
		before := s.acknowledge()
		write(20)
		if n := len(x.wcs(x.scq)); n == 0 || n >= 20 {
			t.Fatalf("%d of 20 requests complete without an acknowledgement, want some", n)
		}
		sent := s.acknowledge()
		synctest.Wait()
		if s.acknowledge() != sent+1 {
			t.Errorf("the corked requests were sent in %d pieces, want 1", s.acknowledge()-sent)
		}
		if sent-before >= 20 {
			t.Errorf("%d pieces before that", sent-before)
		}
		x.wcs(x.scq)
		if !bytes.Equal(y.buf[:160], x.buf[:160]) {
			t.Error("data differ")
		}

		before = s.acknowledge()
		write(256) // the queue is full
		if n := len(x.wcs(x.scq)); n < 256 {
			write(256 - n)
		}
		if n := len(x.wcs(x.scq)); n == 0 {
			t.Error("nothing of a full queue was sent")
		}
		if n := s.acknowledge() - before; n > 10 {
			t.Errorf("a full queue was sent in %d pieces", n)
		}
	})
}

// Corked requests are sent when the application disconnects, even if the stream has no room at that
// time.
func TestCorkedRequestsAreSentBeforeTheEnd(t *testing.T) {
	for _, buffer := range []int{1 << 20, 150} {
		synctest.Test(t, func(t *testing.T) {
			x, y, s, write := corking(t, &network{offloaded: true, buffer: buffer})
			s.acknowledge()
			write(20)
			synctest.Wait()
			must(t, x.conn.ID().Disconnect())
			synctest.Wait()
			for i, wc := range x.wcs(x.scq) {
				if i < 20 && buffer > 1000 && wc.Status != verbs.WCSuccess {
					t.Errorf("request %d: %v", i, wc.Status)
				}
				if wc.Status == verbs.WCSuccess && !bytes.Equal(y.buf[8*i:8*i+8], x.buf[8*i:8*i+8]) {
					t.Errorf("request %d was lost", i)
				}
			}
		})
	}
}

// Small FPDUs and long ones arrive in order, if an FPDU may be longer than a TCP segment.
func TestSmallAndLongFPDUsKeepOrder(t *testing.T) {
	for _, buffer := range []int{1 << 20, 70_000, 3000} {
		synctest.Test(t, func(t *testing.T) {
			n := &network{offloaded: true, buffer: buffer}
			long := iwarp.Config{LongFPDUs: true}
			a, b := newNode(t, n, nodeAddr, 1<<20, long), newNode(t, n, peerAddr, 1<<20, long)
			x, y := pair(a, b)
			copy(x.buf, pattern(5, len(x.buf)))
			var wrs []*verbs.SendWR
			off := 0
			for i := range 40 {
				size := []int{8, 65536, 1, 3000, 64_700, 0, 20_000}[i%7]
				wrs = append(wrs, &verbs.SendWR{
					WRID: uint64(i), Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(off, size)},
				})
				y.recv(uint64(i), off, size)
				off += size
			}
			x.post(wrs...)
			got := y.wcs(y.rcq)
			if len(got) != 40 {
				t.Fatalf("%d of 40 messages arrived", len(got))
			}
			for i, wc := range got {
				if wc.WRID != uint64(i) || wc.Status != verbs.WCSuccess || wc.ByteLen != wrs[i].SGList[0].Length {
					t.Errorf("message %d: %+v", i, wc)
				}
			}
			if !bytes.Equal(y.buf[:off], x.buf[:off]) {
				t.Error("data differ")
			}
		})
	}
}

// The segments of a long message share a piece even if nothing else is posted: those of a WRITE,
// with and without immediate data, of a SEND, and of a READ's response.
func TestSegmentsOfOneMessageShareAPiece(t *testing.T) {
	const size = 30_000 // 21 segments
	for _, op := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMAWriteWithImm, verbs.Send, verbs.RDMARead} {
		t.Run(op.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &network{offloaded: true}
				a, b := newNode(t, n, nodeAddr, 1<<17, iwarp.Config{}), newNode(t, n, peerAddr, 1<<17, iwarp.Config{})
				a.recvs, a.recvLen, b.recvs, b.recvLen = 1, size, 1, size
				x, y := pair(a, b)
				synctest.Wait()
				s := n.dials[0]
				if op == verbs.RDMARead {
					x, y = y, x // the responder's pieces are counted
				}
				before := s.acknowledge()
				x.post(&verbs.SendWR{
					Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{x.mr.SGE(0, size)},
					RKey: y.mr.RKey(), RemoteAddr: y.mr.Addr(),
				})
				synctest.Wait()
				x.statuses(x.scq, verbs.WCSuccess)
				if pieces := s.acknowledge() - before; pieces != 1 {
					t.Errorf("it is sent in %d pieces, want 1", pieces)
				}
			})
		})
	}
}
