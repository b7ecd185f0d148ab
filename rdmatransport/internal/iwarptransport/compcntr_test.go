package iwarptransport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// A completion counter of the peer's WRITEs counts those of its application, also empty ones. It
// does not count the empty ones of the set-up: the ready-to-receive message, and those that an
// initiator sends until it receives something, which may be long on a busy machine.
func TestWritesCounted(t *testing.T) {
	imm := func(p *peer) []byte {
		b := make([]byte, rdmap.ImmediateLen)
		rdmap.PutImmediate(b, 7)
		return p.untagged(rdmap.ImmediateData, b)
	}
	for name, c := range map[string]struct {
		initiator bool // the peer
		messages  func(s *session) [][]byte
		want      uint64
	}{
		"a ready-to-receive message": {true, func(*session) [][]byte { return [][]byte{writeSegment(0, 0, nil)} }, 0},
		"and such WRITEs after it": {true, func(*session) [][]byte {
			return [][]byte{writeSegment(0, 0, nil), writeSegment(0, 0, nil), writeSegment(0, 0, nil)}
		}, 0},
		"and WRITEs of the application": {true, func(s *session) [][]byte {
			rkey, addr := s.mr.RKey(), s.mr.Addr()
			return [][]byte{writeSegment(0, 0, nil), writeSegment(rkey, addr, []byte{1}), writeSegment(0, 0, nil), writeSegment(rkey, addr, nil)}
		}, 2},
		"and an empty one with immediate data": {true, func(s *session) [][]byte {
			return [][]byte{writeSegment(0, 0, nil), writeSegment(0, 0, nil), imm(s.p)}
		}, 1},
		"immediate data first": {true, func(s *session) [][]byte { return [][]byte{writeSegment(0, 0, nil), imm(s.p)} }, 1},
		"WRITEs of a responder that begins to send": {false, func(s *session) [][]byte {
			return [][]byte{writeSegment(0, 0, nil), writeSegment(s.mr.RKey(), s.mr.Addr(), []byte{1}), writeSegment(0, 0, nil)}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
				d.recvs, d.recvLen = 1, 16
				var err error
				d.writes, err = d.dev.CreateCompCntr(&verbs.CompCntrInitAttr{Type: verbs.CompCntrWRs})
				must(t, err)
				var s *session
				if c.initiator {
					s = d.accept(request())
				} else {
					s = d.dial(reply())
				}
				for _, m := range c.messages(s) {
					s.p.send(m)
				}
				synctest.Wait()
				if n := d.writes.Count(); n != c.want || d.writes.ErrCount() != 0 {
					t.Errorf("%d WRITEs and %d errors are counted, want %d", n, d.writes.ErrCount(), c.want)
				}
				s.over()
				must(t, s.conn.Close())
				must(t, d.writes.Close())
			})
		})
	}
}

// The WRITEs that an initiator sends until it receives something are those that counters leave out.
func TestWakingWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newNode(t, &network{}, nodeAddr, 4096, iwarp.Config{})
		s := d.dial(reply())
		time.Sleep(time.Minute)
		n := 0
		for ; ; n++ {
			u, err := s.p.tryWithin(time.Millisecond)
			if err != nil {
				break
			}
			if string(u) != string(writeSegment(0, 0, nil)) {
				t.Errorf("a message %x", u)
			}
		}
		if n == 0 {
			t.Error("no WRITE wakes the peer")
		}
		s.over()
	})
}
