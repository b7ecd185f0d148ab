package iwarptransport_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// Atomics of each code, with masks, from a peer and to a peer.
func TestAtomics(t *testing.T) {
	all := ^uint64(0)
	for i, c := range []struct {
		h            rdmap.AtomicRequestHeader
		before, then uint64
	}{
		{rdmap.AtomicRequestHeader{Code: rdmap.FetchAdd, Data: 5, CompareMask: all}, 37, 42},
		{rdmap.AtomicRequestHeader{Code: rdmap.FetchAdd, Data: all, CompareMask: all}, 0, all},
		{rdmap.AtomicRequestHeader{Code: rdmap.FetchAdd, Data: 1<<32 | 1, Mask: 1<<31 | 1<<63, CompareMask: all}, 0xffffffff, 1 << 32},
		{rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 9, Mask: all, CompareData: 4, CompareMask: all}, 4, 9},
		{rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 9, Mask: all, CompareData: 4, CompareMask: all}, 5, 5},
		// An unconditional swap.
		{rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 9, Mask: all}, 5, 9},
		{rdmap.AtomicRequestHeader{Code: rdmap.CmpSwap, Data: 0xff, Mask: 0x0f, CompareData: 0x1200, CompareMask: 0xff00}, 0x12ab, 0x12af},
	} {
		bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
			d.recvs, d.recvLen = 1, 8
			s := d.dial(reply())
			binary.NativeEndian.PutUint64(d.buf[16:], c.before)
			c.h.ID, c.h.STag, c.h.TO = uint32(100+i), d.mr.RKey(), d.mr.Addr()+16
			s.p.send(s.p.atomicRequest(c.h))
			r, err := rdmap.ParseAtomicResponse(s.p.expect(rdmap.AtomicResponse).payload)
			must(t, err)
			if now := binary.NativeEndian.Uint64(d.buf[16:]); r.ID != c.h.ID || r.Original != c.before || now != c.then {
				t.Errorf("%+v of %#x: answered %+v, left %#x", c.h, c.before, r, now)
			}
			if wcs := s.wcs(d.rcq); len(wcs) != 0 {
				t.Errorf("the application sees %+v", wcs)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		a, b := newNode(t, n, nodeAddr, 4096, iwarp.Config{}), newNode(t, n, peerAddr, 4096, iwarp.Config{})
		x, _ := pair(a, b)
		binary.NativeEndian.PutUint64(b.buf[8:], 10)
		wr := verbs.SendWR{Flags: verbs.SendSignaled, RKey: b.mr.RKey(), RemoteAddr: b.mr.Addr() + 8}
		add, miss, hit := wr, wr, wr
		add.WRID, add.Opcode, add.CompareAdd, add.SGList = 0, verbs.AtomicFetchAndAdd, 5, []verbs.SGE{a.mr.SGE(0, 8)}
		miss.WRID, miss.Opcode, miss.CompareAdd, miss.Swap, miss.SGList = 1, verbs.AtomicCmpAndSwp, 14, 1, []verbs.SGE{a.mr.SGE(8, 8)}
		hit.WRID, hit.Opcode, hit.CompareAdd, hit.Swap, hit.SGList = 2, verbs.AtomicCmpAndSwp, 15, 77, []verbs.SGE{a.mr.SGE(16, 8)}
		x.post(&add, &miss, &hit)
		for _, wc := range x.statuses(a.scq, 0, 0, 0) {
			if wc.ByteLen != 8 {
				t.Errorf("%+v", wc)
			}
		}
		for i, want := range []uint64{10, 15, 15} {
			if got := binary.NativeEndian.Uint64(a.buf[8*i:]); got != want {
				t.Errorf("atomic %d found %d", i, got)
			}
		}
		if got := binary.NativeEndian.Uint64(b.buf[8:]); got != 77 {
			t.Errorf("left %d", got)
		}
	})
}

// An atomic that is not on 8 aligned bytes changes nothing and ends the stream (RFC 7306 §8.2).
func TestAtomicAlignment(t *testing.T) {
	for _, code := range []rdmap.AtomicCode{rdmap.FetchAdd, rdmap.CmpSwap} {
		for off := uint64(1); off < 8; off++ {
			bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
				s := d.dial(reply())
				s.p.send(s.p.atomicRequest(rdmap.AtomicRequestHeader{
					Code: code, STag: d.mr.RKey(), TO: d.mr.Addr() + off, Data: ^uint64(0), Mask: ^uint64(0),
				}))
				h := s.p.terminated(rdmap.Cause{Layer: 0, Type: 2, Code: 7})
				if !h.HasSegmentLen || h.SegmentLen != 18+52 || len(h.DDPHeader) != 18 {
					t.Errorf("%+v", h)
				}
				if !bytes.Equal(d.buf, make([]byte, len(d.buf))) {
					t.Error("memory is changed")
				}
				s.over()
			})
		}
	}
	// An aligned offset in a region at an odd address has neither an aligned address nor aligned
	// memory.
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		mr, err := d.pd.RegMREx(&verbs.MRInitAttr{Buf: d.buf[4:4000], IOVA: new(uint64(0x1000)), Access: allRights})
		must(t, err)
		d.regions = append(d.regions, mr)
		s := d.dial(reply())
		s.p.send(s.p.atomicRequest(rdmap.AtomicRequestHeader{STag: mr.RKey(), TO: 0x1000, Data: 1}))
		s.p.terminated(rdmap.StreamCatastrophic)
		s.over()
	})
}

// Additions from many streams are all counted, and no two return the same value.
func TestAtomicsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &network{}
		const streams, each = 6, 200
		a, b := newNode(t, n, nodeAddr, 1<<16, iwarp.Config{}), newNode(t, n, peerAddr, 4096, iwarp.Config{})
		var sessions []*session
		for range streams {
			x, _ := pair(a, b)
			sessions = append(sessions, x)
		}
		for i, x := range sessions {
			go func() {
				for k := range each {
					wr := &verbs.SendWR{
						Opcode: verbs.AtomicFetchAndAdd, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(8*(each*i+k), 8)},
						CompareAdd: 1, RKey: b.mr.RKey(), RemoteAddr: b.mr.Addr() + 64,
					}
					if err := x.qp.PostSend(wr); err != nil {
						t.Error(err)
					}
				}
			}()
		}
		synctest.Wait()
		if n := len(drain(t, a.scq)); n != streams*each {
			t.Fatalf("%d completions", n)
		}
		if got := binary.NativeEndian.Uint64(b.buf[64:]); got != streams*each {
			t.Errorf("the sum is %d", got)
		}
		found := map[uint64]bool{}
		for i := range streams * each {
			found[binary.NativeEndian.Uint64(a.buf[8*i:])] = true
		}
		if len(found) != streams*each {
			t.Errorf("%d different values", len(found))
		}
	})
}
