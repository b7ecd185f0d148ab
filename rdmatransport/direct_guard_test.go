package rdmatransport_test

import (
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// An invalid message is not copied directly. It fails as in packets.

// shortTimeout gives up after 67 ms, without a retry.
func shortTimeout(a *verbs.QPAttr) { a.Timeout, a.RetryCnt = 14, 0 }

// guarded returns two ends with a QP each that is not connected yet.
func guarded(t *testing.T, s setting, f func(a, b *mwEnd)) {
	t.Helper()
	pair := newEnds(t, s, 8192)
	var e [2]*mwEnd
	for i := range e {
		e[i] = &mwEnd{end: &pair.side[i], big: pair.side[i].mr}
		e[i].qp = e[i].newQP(t)
	}
	f(e[0], e[1])
}

// inVirtualTime is guarded in virtual time.
func inVirtualTime(t *testing.T, s setting, f func(t *testing.T, a, b *mwEnd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		guarded(t, s, func(a, b *mwEnd) { f(t, a, b) })
	})
}

// fails posts a request from a to b, which must complete with this status.
func (e *mwEnd) fails(t *testing.T, op verbs.WROpcode, n int, to *mwEnd, want verbs.WCStatus) {
	t.Helper()
	err := e.qp.PostSend(&verbs.SendWR{WRID: 1, Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e.mr.SGE(0, n)},
		RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey(), CompareAdd: 1})
	if err != nil {
		t.Fatal(err)
	}
	if wc := e.next(t); wc.Status != want {
		t.Errorf("%v: %v, want %v", op, wc.Status, want)
	}
}

// TestDirectGuards checks that nothing is copied directly between QPs whose attributes do not
// match. Time is virtual.
func TestDirectGuards(t *testing.T) {
	for _, w := range ways {
		w.setting.transport = verbs.RoCEv2
		t.Run(w.name, func(t *testing.T) {
			t.Run("the peer is connected to another QP", func(t *testing.T) {
				inVirtualTime(t, w.setting, func(t *testing.T, a, b *mwEnd) {
					a.to(t, b.device, b.qp, shortTimeout)
					b.to(t, a.device, a.newQP(t), nil)
					a.fails(t, verbs.RDMAWrite, 8, b, verbs.WCRetryExcErr)
				})
			})
			t.Run("the peer is closed after a message", func(t *testing.T) {
				inVirtualTime(t, w.setting, func(t *testing.T, a, b *mwEnd) {
					a.to(t, b.device, b.qp, shortTimeout)
					b.to(t, a.device, a.qp, nil)
					a.fails(t, verbs.RDMAWrite, 8, b, verbs.WCSuccess)
					ok(t, b.qp.Close())
					a.fails(t, verbs.RDMAWrite, 8, b, verbs.WCRetryExcErr)
				})
			})
			t.Run("the peer is connected to another QP after a message", func(t *testing.T) {
				inVirtualTime(t, w.setting, func(t *testing.T, a, b *mwEnd) {
					a.to(t, b.device, b.qp, shortTimeout)
					b.to(t, a.device, a.qp, nil)
					a.fails(t, verbs.RDMAWrite, 8, b, verbs.WCSuccess)
					ok(t, b.qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
					b.to(t, a.device, a.newQP(t), nil)
					a.fails(t, verbs.RDMAWrite, 8, b, verbs.WCRetryExcErr)
				})
			})
			t.Run("another path MTU", func(t *testing.T) {
				inVirtualTime(t, w.setting, func(t *testing.T, a, b *mwEnd) {
					a.to(t, b.device, b.qp, nil)
					b.to(t, a.device, a.qp, func(attr *verbs.QPAttr) { attr.PathMTU = verbs.MTU512 })
					a.fails(t, verbs.RDMAWrite, 4000, b, verbs.WCRemInvReqErr)
				})
			})
			for _, op := range []verbs.WROpcode{verbs.RDMARead, verbs.AtomicFetchAndAdd} {
				t.Run(op.String()+" where none may be outstanding", func(t *testing.T) {
					inVirtualTime(t, w.setting, func(t *testing.T, a, b *mwEnd) {
						a.to(t, b.device, b.qp, func(attr *verbs.QPAttr) { attr.MaxRDAtomic = 0 })
						b.to(t, a.device, a.qp, nil)
						a.fails(t, op, 8, b, verbs.WCLocQPOpErr)
					})
				})
				t.Run(op.String()+" where the peer answers none", func(t *testing.T) {
					inVirtualTime(t, w.setting, func(t *testing.T, a, b *mwEnd) {
						a.to(t, b.device, b.qp, nil)
						b.to(t, a.device, a.qp, func(attr *verbs.QPAttr) { attr.MaxDestRDAtomic = 0 })
						a.fails(t, op, 8, b, verbs.WCRemInvReqErr)
					})
				})
			}
		})
	}
}

// TestDirectAtomicAlignment checks atomics on unaligned memory. An atomic needs an address that is
// a multiple of 8, and memory at such an address. A region that is registered at an address of the
// application's choice may have only one of the two. (IBTA Vol 1 §9.4.5, RFC 7306 §8.2)
func TestDirectAtomicAlignment(t *testing.T) {
	everyWay(t, func(t *testing.T, s setting) {
		for _, c := range []struct {
			name       string
			iova, addr uint64
			aligned    bool
		}{
			{"both are aligned", 0x1000, 0x1008, true},
			{"the memory alone is aligned", 0x1004, 0x1004, false},
			{"the address alone is aligned", 0x1004, 0x1008, false},
			{"neither is aligned", 0x1000, 0x1004, false},
		} {
			t.Run(c.name, func(t *testing.T) {
				e := &newEnds(t, s, 64).side
				buf := make([]byte, 64)
				mr := must(e[1].mr.PD().RegMREx(&verbs.MRInitAttr{Buf: buf, IOVA: new(c.iova), Access: iwarpAccess}))(t)
				defer func() { ok(t, mr.Close()) }()
				e[0].post(t, &verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, Flags: verbs.SendSignaled,
					SGList: []verbs.SGE{e[0].mr.SGE(0, 8)}, RemoteAddr: c.addr, RKey: mr.RKey(), CompareAdd: 7})
				status, value := verbs.WCRemInvReqErr, uint64(0)
				if c.aligned {
					status, value = verbs.WCSuccess, 7
				}
				if wc := e[0].next(t); wc.Status != status {
					t.Errorf("%v, want %v", wc.Status, status)
				}
				if got := binary.NativeEndian.Uint64(buf[c.addr-c.iova:]); got != value {
					t.Errorf("the memory has %d, want %d", got, value)
				}
				if n := e[0].direct(t); c.aligned && s.wrap == nil && n == 0 {
					t.Error("a valid atomic was sent in packets")
				}
			})
		}
	})
}

// TestDirectChecksAgain checks a sender that has to unlock its own QP before it can lock both. It
// then checks again everything that may have changed meanwhile.
func TestDirectChecksAgain(t *testing.T) {
	for _, w := range ways[1:] {
		s := w.setting
		s.transport = verbs.RoCEv2 // iWARP has no SQD
		waited := false
		for range 10 { // QPs are locked in one order, so one of two senders has to unlock
			guarded(t, s, func(a, b *mwEnd) {
				if waited {
					return
				}
				a.to(t, b.device, b.qp, nil)
				b.to(t, a.device, a.qp, nil)
				for _, e := range [][2]*mwEnd{{a, b}, {b, a}} {
					waited = e[0].sendDuringSQD(t, e[1]) || waited
				}
			})
		}
		if !waited {
			t.Errorf("%s: no sender has released its lock", w.name)
		}
	}
}

// sendDuringSQD posts a WRITE while the peer is locked, and moves e to SQD meanwhile. It returns
// false if e holds its lock all the time.
func (e *mwEnd) sendDuringSQD(t *testing.T, to *mwEnd) bool {
	t.Helper()
	lock := to.handles.of(to.qp)
	lock.Lock()
	posted, drained := make(chan error, 1), make(chan error, 1)
	go func() {
		posted <- e.qp.PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{e.mr.SGE(0, 8)}, RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()})
	}()
	for !lock.Contended() {
		runtime.Gosched()
	}
	go func() { drained <- e.qp.Modify(&verbs.QPAttr{QPState: verbs.StateSQD}, verbs.QPAttrState) }()
	own, free, err := e.handles.of(e.qp), false, error(nil)
	for blocked := 0; blocked < 1<<12 && !free; {
		select {
		case err = <-drained:
			free = true
		default:
			runtime.Gosched()
			// Modify waits for the sender, which waits for the peer, or the sender is about to
			// continue.
			if own.Contended() {
				blocked++
			}
		}
	}
	lock.Unlock()
	if !free {
		err = <-drained
	}
	ok(t, errors.Join(err, <-posted))
	if free {
		if n := e.poll(t); n > 0 {
			t.Errorf("a request is executed in SQD: %v", e.wcs[0].Status)
		}
	}
	ok(t, e.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState))
	if wc := e.next(t); wc.Status != verbs.WCSuccess {
		t.Error(wc.Status)
	}
	return free
}

// TestDirectReadOrder checks a READ over iWARP, where the stream keeps the order. The READ
// completes only after the SENDs that the peer sent before its answer have been placed, even if
// these were not copied directly.
func TestDirectReadOrder(t *testing.T) {
	everyWay(t, func(t *testing.T, s setting) {
		if s.transport != verbs.IWARP {
			return
		}
		var srq *verbs.SRQ
		s.conn = func(i int, c *rdmacm.Config) {
			if i == 0 {
				var err error
				srq, err = c.PD.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 1, MaxSGE: 1}})
				ok(t, err)
				c.SRQ = srq
			}
		}
		e := &newEnds(t, s, 64).side
		a, b := &e[0], &e[1]
		t.Cleanup(func() { ok(t, errors.Join(a.Conn.Close(), srq.Close())) })
		// A request of the SRQ is not used directly for memory that may fault.
		mapped, err := b.mr.PD().RegMREx(&verbs.MRInitAttr{Buf: make([]byte, 8), Access: iwarpAccess, Mapped: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { ok(t, mapped.Close()) }()
		for i := range uint64(200) {
			ok(t, srq.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{a.mr.SGE(0, 8)}}))
			binary.NativeEndian.PutUint64(mapped.Buf(), i)
			b.post(t, &verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mapped.SGE(0, 8)}})
			b.take(t) // TCP has the SEND; posted alone, it might be sent after the answer
			a.post(t, &verbs.SendWR{Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(8, 8)},
				RemoteAddr: b.mr.Addr() + 8, RKey: b.mr.RKey()})
			for read := false; !read; {
				n := a.take(t)
				for _, wc := range a.wcs[:n] {
					read = read || wc.Opcode == verbs.WCRDMARead
				}
			}
			if got := binary.NativeEndian.Uint64(a.mr.Buf()); got != i {
				t.Fatalf("a READ completes before SEND %d, after %d", i, got)
			}
		}
	})
}

// TestDirectSharedReceives checks that a SEND that fails at its sender uses no receive request of
// an SRQ.
func TestDirectSharedReceives(t *testing.T) {
	for _, transport := range transports {
		t.Run(transport.String(), func(t *testing.T) {
			lan := new(pipe.Switch)
			a, b := newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
			out, in := a.reg(make([]byte, 64), everyAccess), b.reg(make([]byte, 64), verbs.AccessLocalWrite)
			srq := must(b.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}}))(t)
			t.Cleanup(func() { ok(t, srq.Close()) })
			ok(t, srq.PostRecv(&verbs.RecvWR{WRID: 7, SGList: []verbs.SGE{in.SGE(0, 64)}}))
			shared := func(c *rdmacm.Config) { c.SRQ = srq }
			bad, _ := dial(a, b, transport, shared)
			good, at := dial(a, b, transport, shared)
			sge := out.SGE(0, 8)
			sge.LKey ^= 1
			ok(t, bad.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{sge}}))
			if wc := poll(t, bad.QP().SendCQ()); wc.Status != verbs.WCLocProtErr {
				t.Error(wc.Status)
			}
			ok(t, good.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{out.SGE(0, 8)}}))
			if wc := poll(t, at.QP().RecvCQ()); wc.Status != verbs.WCSuccess || wc.WRID != 7 {
				t.Errorf("%+v", wc)
			}
		})
	}
}
