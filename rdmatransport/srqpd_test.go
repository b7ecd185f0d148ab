package rdmatransport_test

import (
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestSRQOfAnotherPD checks that a receive request of an SRQ uses regions of the SRQ's PD, rather
// than of the QP's PD.
func TestSRQOfAnotherPD(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		const size = 4096 // several packets
		for _, own := range []bool{true, false} {
			a, b := m.stations(t, nil)
			out := a.reg(make([]byte, size), everyAccess)
			pd := must(b.dev.AllocPD())(t)
			t.Cleanup(func() { ok(t, pd.Close()) })
			in := must(pd.RegMR(make([]byte, size), verbs.AccessLocalWrite))(t)
			ofQP := b.reg(make([]byte, size), verbs.AccessLocalWrite)
			srq := must(pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}}))(t)
			t.Cleanup(func() { ok(t, srq.Close()) })
			x, y := dial(a, b, transport, func(c *rdmacm.Config) { c.SRQ = srq })
			buf, want := in, verbs.WCSuccess
			if !own {
				buf, want = ofQP, verbs.WCLocProtErr
			}
			ok(t, srq.PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{buf.SGE(0, size)}}))
			out.Buf()[size-1] = 7
			ok(t, x.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{out.SGE(0, size)}}))
			if wc := poll(t, y.QP().RecvCQ()); wc.WRID != 1 || wc.Status != want || own && in.Buf()[size-1] != 7 ||
				ofQP.Buf()[size-1] != 0 {
				t.Errorf("a region of the SRQ's PD: %v: %+v, want %v", own, wc, want)
			}
			ok(t, in.Close())
		}
	})
}

// TestRawSRQOfAnotherPD is TestSRQOfAnotherPD for a raw packet QP.
func TestRawSRQOfAnotherPD(t *testing.T) {
	lan := new(pipe.Switch)
	s := newStation(t, lan, "10.0.0.1/24")
	w := newWirePort(t, lan)
	pd := must(s.dev.AllocPD())(t)
	t.Cleanup(func() { ok(t, pd.Close()) })
	mr := must(pd.RegMR(make([]byte, 256), verbs.AccessLocalWrite))(t)
	t.Cleanup(func() { ok(t, mr.Close()) })
	srq := must(pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(t)
	t.Cleanup(func() { ok(t, srq.Close()) })
	r := newRawEnd(t, s.pd, s.dev, 256, srq)
	r.flow(verbs.FlowAttr{Specs: []verbs.FlowSpec{ethType(testType)}})
	ok(t, srq.PostRecv(&verbs.RecvWR{WRID: 3, SGList: []verbs.SGE{mr.SGE(0, 256)}}))
	w.put(t, frame(s.host.NICs()[0].MAC(), w.MAC(), testType, 42))
	if wc := poll(t, r.cq); wc.Status != verbs.WCSuccess || wc.WRID != 3 || mr.Buf()[14] != 42 {
		t.Errorf("%+v", wc)
	}
}

// TestWriteWithImmRefused checks the errors of a WRITE with immediate that the peer's memory does
// not allow. The requester gets the remote error, and the receive request completes with the local
// one.
func TestWriteWithImmRefused(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) {
		for name, refuse := range map[string]func(p *windowPair, wr *verbs.SendWR){
			"no such key": func(_ *windowPair, wr *verbs.SendWR) { wr.RKey ^= 1 << 20 },
			"no right":    func(p *windowPair, wr *verbs.SendWR) { wr.RKey = p.bm.RKey() },
			"beyond":      func(p *windowPair, wr *verbs.SendWR) { wr.RemoteAddr += 8192 - 99 },
			"window":      func(p *windowPair, wr *verbs.SendWR) { wr.RKey = p.bound(4000, verbs.AccessRemoteRead).RKey() },
		} {
			t.Run(name, func(t *testing.T) {
				p := newWindowPair(t, m, verbs.RoCEv2)
				target := p.b.reg(make([]byte, 8192), everyAccess)
				ok(t, p.qb.QP().PostRecv(&verbs.RecvWR{WRID: 1}, &verbs.RecvWR{WRID: 2}))
				wr := &verbs.SendWR{Opcode: verbs.RDMAWriteWithImm, SGList: []verbs.SGE{p.am.SGE(0, 100)},
					RemoteAddr: target.Addr(), RKey: target.RKey()}
				if name == "no right" || name == "window" {
					wr.RemoteAddr = p.bm.Addr()
				}
				refuse(p, wr)
				if s := p.do(p.qa, wr); s != verbs.WCRemAccessErr {
					t.Errorf("requester: %v", s)
				}
				for _, want := range []verbs.WC{{WRID: 1, Status: verbs.WCLocAccessErr}, {WRID: 2, Status: verbs.WCWRFlushErr}} {
					if wc := poll(t, p.qb.QP().RecvCQ()); wc.WRID != want.WRID || wc.Status != want.Status {
						t.Errorf("responder: %+v, want %+v", wc, want)
					}
				}
			})
		}
	})
}
