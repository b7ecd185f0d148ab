package rdmatransport_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// windowPair has two connected stations. b has a region that peers access through windows only.
type windowPair struct {
	t      *testing.T
	a, b   *station
	qa, qb *rdmacm.Conn
	am, bm *verbs.MR
}

func newWindowPair(t *testing.T, m medium, transport verbs.Transport) *windowPair {
	p := &windowPair{t: t}
	p.a, p.b = m.stations(t, nil)
	p.am = p.a.reg(make([]byte, 8192), everyAccess)
	p.bm = p.b.reg(make([]byte, 8192), verbs.AccessLocalWrite|verbs.AccessMWBind)
	p.qa, p.qb = dial(p.a, p.b, transport, nil)
	return p
}

// do posts a request and returns its status.
func (p *windowPair) do(c *rdmacm.Conn, wr *verbs.SendWR) verbs.WCStatus {
	p.t.Helper()
	wr.Flags |= verbs.SendSignaled
	ok(p.t, c.QP().PostSend(wr))
	return poll(p.t, c.QP().SendCQ()).Status
}

// bound returns a window of b's QP over n bytes of its region.
func (p *windowPair) bound(n uint64, access verbs.Access) *verbs.MW {
	p.t.Helper()
	mw := must(p.b.pd.AllocMW(verbs.MWType2))(p.t)
	p.t.Cleanup(func() { _ = mw.Close() })
	p.rebind(mw, n, access)
	return mw
}

// rebind binds a window with its next key, whose upper 24 bits are left out.
func (p *windowPair) rebind(mw *verbs.MW, n uint64, access verbs.Access) {
	p.t.Helper()
	s := p.do(p.qb, &verbs.SendWR{Opcode: verbs.BindMW, Bind: &verbs.MWBind{MW: mw, RKey: verbs.IncRKey(mw.RKey()) & 0xff,
		MWBindInfo: verbs.MWBindInfo{MR: p.bm, Addr: p.bm.Addr(), Length: n, Access: access}}})
	if s != verbs.WCSuccess {
		p.t.Fatal(s)
	}
}

// read reads n bytes through an rkey of b, and returns the status.
func (p *windowPair) read(rkey uint32, n int) verbs.WCStatus {
	p.t.Helper()
	return p.do(p.qa, &verbs.SendWR{Opcode: verbs.RDMARead, RemoteAddr: p.bm.Addr(), RKey: rkey, SGList: []verbs.SGE{p.am.SGE(0, n)}})
}

// TestWindows checks that peers can use the memory of a window of either type. A region with a
// window cannot be deregistered.
func TestWindows(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		p := newWindowPair(t, m, transport)
		copy(p.bm.Buf(), "through the window")
		rw := verbs.AccessRemoteRead | verbs.AccessRemoteWrite
		mw := p.bound(4000, rw)
		if s := p.read(mw.RKey(), 4000); s != verbs.WCSuccess || string(p.am.Buf()[:18]) != "through the window" {
			t.Errorf("%v, %q", s, p.am.Buf()[:18])
		}
		if err := p.bm.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}

		one := must(p.b.pd.AllocMW(verbs.MWType1))(t)
		ok(t, p.qb.QP().BindMW(one, 1, verbs.SendSignaled, verbs.MWBindInfo{MR: p.bm, Addr: p.bm.Addr(), Length: 10, Access: rw}))
		if wc := poll(t, p.qb.QP().SendCQ()); wc.Status != verbs.WCSuccess || wc.Opcode != verbs.WCBindMW || wc.WRID != 1 {
			t.Errorf("got %+v", wc)
		}
		copy(p.am.Buf(), "0123456789")
		s := p.do(p.qa, &verbs.SendWR{Opcode: verbs.RDMAWrite, RemoteAddr: p.bm.Addr(), RKey: one.RKey(),
			SGList: []verbs.SGE{p.am.SGE(0, 10)}})
		if s != verbs.WCSuccess {
			t.Error(s)
		}
		if s := p.read(mw.RKey(), 10); s != verbs.WCSuccess || string(p.am.Buf()[:10]) != "0123456789" {
			t.Errorf("%v, %q", s, p.am.Buf()[:10]) // the READ follows the WRITE
		}
		ok(t, one.Close())
		ok(t, mw.Close())
		if s := p.read(mw.RKey(), 1); s != verbs.WCRemAccessErr {
			t.Errorf("through a deallocated window: %v", s)
		}
		ok(t, p.bm.Close())
	})
}

// TestInvalidateLocally checks that LOCAL_INV is executed in order with the requests around it, and
// that another bind makes the window usable again.
func TestInvalidateLocally(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		p := newWindowPair(t, m, transport)
		mw := p.bound(100, verbs.AccessRemoteRead)
		old := mw.RKey()
		ok(t, p.qb.QP().PostSend(
			&verbs.SendWR{WRID: 1, Opcode: verbs.RDMAWrite, RemoteAddr: p.am.Addr(), RKey: p.am.RKey(),
				SGList: []verbs.SGE{p.bm.SGE(0, 8192)}},
			&verbs.SendWR{WRID: 2, Opcode: verbs.LocalInv, InvalidateRKey: old, Flags: verbs.SendSignaled},
			&verbs.SendWR{WRID: 3, Opcode: verbs.RDMAWrite, RemoteAddr: p.am.Addr(), RKey: p.am.RKey(), Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{p.bm.SGE(0, 8192)}},
		))
		for _, want := range []verbs.WC{{WRID: 2, Opcode: verbs.WCLocalInv}, {WRID: 3, Opcode: verbs.WCRDMAWrite}} {
			if wc := poll(t, p.qb.QP().SendCQ()); wc.Status != verbs.WCSuccess || wc.WRID != want.WRID || wc.Opcode != want.Opcode {
				t.Errorf("got %+v, want %+v", wc, want)
			}
		}
		p.rebind(mw, 100, verbs.AccessRemoteRead)
		if s := p.read(mw.RKey(), 100); s != verbs.WCSuccess {
			t.Error(s)
		}
		if s := p.read(old, 100); s != verbs.WCRemAccessErr {
			t.Errorf("the old key: %v", s)
		}
	})
}

// TestInvalidateRemotely checks that SEND with Invalidate invalidates the window before the
// receiver gets the message.
func TestInvalidateRemotely(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		p := newWindowPair(t, m, transport)
		mw := p.bound(100, verbs.AccessRemoteRead)
		old := mw.RKey()
		ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{WRID: 9, SGList: []verbs.SGE{p.bm.SGE(0, 8192)}}))
		if s := p.do(p.qa, &verbs.SendWR{Opcode: verbs.SendWithInv, InvalidateRKey: old,
			SGList: []verbs.SGE{p.am.SGE(0, 3000)}}); s != verbs.WCSuccess {
			t.Error(s)
		}
		wc := poll(t, p.qb.QP().RecvCQ())
		if wc.Status != verbs.WCSuccess || wc.WRID != 9 || wc.ByteLen != 3000 || wc.Flags != verbs.WCWithInv || wc.InvalidatedRKey != old {
			t.Errorf("got %+v", wc)
		}
		p.rebind(mw, 100, verbs.AccessRemoteRead) // only an unbound window can be bound
		if s := p.read(mw.RKey(), 100); s != verbs.WCSuccess {
			t.Error(s)
		}
		// An invalid invalidation ends the connection, on both sides.
		ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{WRID: 10, SGList: []verbs.SGE{p.bm.SGE(0, 8192)}}))
		ok(t, p.qa.QP().PostSend(&verbs.SendWR{Opcode: verbs.SendWithInv, InvalidateRKey: old, Flags: verbs.SendSignaled}))
		if wc := poll(t, p.qb.QP().RecvCQ()); wc.Status != verbs.WCRemInvReqErr || wc.WRID != 10 {
			t.Errorf("got %+v", wc)
		}
		if wc := poll(t, p.qa.QP().SendCQ()); transport == verbs.RoCEv2 && wc.Status != verbs.WCRemAccessErr {
			t.Errorf("got %+v", wc)
		}
	})
}

// TestLocalFailures checks that an invalid bind or invalidation fails as a work request, after
// earlier requests have completed.
func TestLocalFailures(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		for _, c := range []struct {
			want verbs.WCStatus
			wr   func(p *windowPair) *verbs.SendWR
		}{
			{verbs.WCMWBindErr, func(p *windowPair) *verbs.SendWR {
				mw := must(p.b.pd.AllocMW(verbs.MWType2))(t)
				t.Cleanup(func() { _ = mw.Close() })
				return &verbs.SendWR{Opcode: verbs.BindMW, Bind: &verbs.MWBind{MW: mw, RKey: verbs.IncRKey(mw.RKey()),
					MWBindInfo: verbs.MWBindInfo{MR: p.bm, Addr: p.bm.Addr(), Length: 8193}}}
			}},
			{verbs.WCMWBindErr, func(p *windowPair) *verbs.SendWR {
				return &verbs.SendWR{Opcode: verbs.LocalInv, InvalidateRKey: p.bm.RKey()}
			}},
		} {
			p := newWindowPair(t, m, transport)
			bad := c.wr(p)
			bad.WRID = 2
			ok(t, p.qb.QP().PostSend(
				&verbs.SendWR{WRID: 1, Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, RemoteAddr: p.am.Addr(), RKey: p.am.RKey(),
					SGList: []verbs.SGE{p.bm.SGE(0, 8192)}},
				bad, &verbs.SendWR{WRID: 3, Opcode: verbs.RDMAWrite}))
			for i, want := range []verbs.WCStatus{verbs.WCSuccess, c.want, verbs.WCWRFlushErr} {
				if wc := poll(t, p.qb.QP().SendCQ()); wc.Status != want || wc.WRID != uint64(i+1) {
					t.Errorf("got WR %d with %v, want %d with %v", wc.WRID, wc.Status, i+1, want)
				}
			}
		}
	})
}

// TestFaults checks that unmapped memory fails the work request that needs it, at either end, and
// does not crash the process.
func TestFaults(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no mmap on this system")
	}
	page := os.Getpagesize()
	faulty := func(s *station) *verbs.MR {
		f := must(os.Create(filepath.Join(s.t.TempDir(), "f")))(s.t)
		defer f.Close()
		ok(s.t, f.Truncate(int64(2*page)))
		mr := must(s.pd.RegMREx(&verbs.MRInitAttr{File: f, FileLength: 2 * page, Access: everyAccess}))(s.t)
		s.t.Cleanup(func() { ok(s.t, mr.Close()) })
		ok(s.t, f.Truncate(int64(page)))
		return mr
	}
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		for _, c := range []struct {
			name string
			run  func(p *windowPair) verbs.WCStatus
			want verbs.WCStatus
		}{
			{"mapped part", func(p *windowPair) verbs.WCStatus {
				mr := faulty(p.b)
				copy(p.am.Buf(), "a file")
				wr := verbs.SendWR{Opcode: verbs.RDMAWrite, RemoteAddr: mr.Addr(), RKey: mr.RKey(), SGList: []verbs.SGE{p.am.SGE(0, 6)}}
				if s := p.do(p.qa, &wr); s != verbs.WCSuccess {
					return s
				}
				s := p.do(p.qa, &verbs.SendWR{Opcode: verbs.RDMARead, RemoteAddr: mr.Addr(),
					RKey: mr.RKey(), SGList: []verbs.SGE{p.am.SGE(100, 6)}})
				if string(p.am.Buf()[100:106]) != "a file" {
					p.t.Errorf("read %q", p.am.Buf()[100:106])
				}
				return s
			}, verbs.WCSuccess},
			{"SEND from it", func(p *windowPair) verbs.WCStatus {
				return p.do(p.qa, &verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{faulty(p.a).SGE(page, 100)}})
			}, verbs.WCLocProtErr},
			{"WRITE of several packets from a part of it", func(p *windowPair) verbs.WCStatus {
				to := p.b.reg(make([]byte, 8000), everyAccess)
				return p.do(p.qa, &verbs.SendWR{Opcode: verbs.RDMAWrite, RemoteAddr: to.Addr(), RKey: to.RKey(),
					SGList: []verbs.SGE{faulty(p.a).SGE(page-4000, 8000)}})
			}, verbs.WCLocProtErr},
			{"SEND of several packets from a part of it", func(p *windowPair) verbs.WCStatus {
				ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{p.bm.SGE(0, 8192)}}))
				return p.do(p.qa, &verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{faulty(p.a).SGE(page-4000, 8000)}})
			}, verbs.WCLocProtErr},
			{"READ into it", func(p *windowPair) verbs.WCStatus {
				return p.do(p.qb, &verbs.SendWR{Opcode: verbs.RDMARead, RemoteAddr: p.am.Addr(), RKey: p.am.RKey(),
					SGList: []verbs.SGE{faulty(p.b).SGE(page, 100)}})
			}, verbs.WCLocProtErr},
			{"READ of it", func(p *windowPair) verbs.WCStatus {
				mr := faulty(p.b)
				return p.do(p.qa, &verbs.SendWR{Opcode: verbs.RDMARead, RemoteAddr: mr.Addr() + uint64(page), RKey: mr.RKey(),
					SGList: []verbs.SGE{p.am.SGE(0, 100)}})
			}, verbs.WCRemOpErr},
			{"atomic", func(p *windowPair) verbs.WCStatus {
				mr := faulty(p.b)
				return p.do(p.qa, &verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, RemoteAddr: mr.Addr() + uint64(page), RKey: mr.RKey(),
					SGList: []verbs.SGE{p.am.SGE(0, 8)}})
			}, verbs.WCRemOpErr},
			{"WRITE to it", func(p *windowPair) verbs.WCStatus {
				mr := faulty(p.b)
				s := p.do(p.qa, &verbs.SendWR{Opcode: verbs.RDMAWrite, RemoteAddr: mr.Addr() + uint64(page), RKey: mr.RKey(),
					SGList: []verbs.SGE{p.am.SGE(0, 100)}})
				if transport == verbs.IWARP && s == verbs.WCSuccess {
					return verbs.WCRemOpErr // TCP accepted it: only an event reports the failure
				}
				return s
			}, verbs.WCRemOpErr},
			{"SEND to it", func(p *windowPair) verbs.WCStatus {
				mr := faulty(p.b)
				ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(page, 100)}}))
				s := p.do(p.qa, &verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{p.am.SGE(0, 100)}})
				if transport == verbs.RoCEv2 && s != verbs.WCRemOpErr {
					t.Errorf("the sender has %v", s)
				}
				return poll(t, p.qb.QP().RecvCQ()).Status
			}, verbs.WCLocProtErr},
		} {
			t.Run(c.name, func(t *testing.T) {
				p := newWindowPair(t, m, transport)
				p.t, p.a.t, p.b.t = t, t, t
				if s := c.run(p); s != c.want {
					t.Errorf("%v, want %v", s, c.want)
				}
			})
		}
	})
}

// TestMemoryCapabilities checks that MEM_MGT_EXTENSIONS is not reported. It stands for fast
// registration, local invalidation of regions and SEND with invalidate together (the base memory
// management extensions), and the first is missing.
func TestMemoryCapabilities(t *testing.T) {
	s := newStation(t, new(pipe.Switch), "10.0.0.1/24")
	const windows = verbs.DeviceMemWindow | verbs.DeviceMemWindowType2B
	switch flags := s.dev.QueryDevice().DeviceCapFlags; {
	case flags&verbs.DeviceMemMgtExtensions != 0:
		t.Errorf("%v: no work request registers memory", flags)
	case flags&windows != windows:
		t.Errorf("%v: windows are supported", flags)
	}
}
