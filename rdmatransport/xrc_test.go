package rdmatransport_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// gidIndex returns the index of the station's address.
func (s *station) gidIndex() uint8 {
	s.t.Helper()
	table := must(s.dev.GIDTable(1))(s.t)
	return uint8(table[slices.IndexFunc(table, func(e verbs.GIDEntry) bool { return e.GID.Addr() == s.addr })].Index)
}

// cq creates a CQ with a channel, until the end of the test.
func (s *station) cq() *verbs.CQ {
	s.t.Helper()
	ch := must(s.dev.CreateCompChannel())(s.t)
	s.t.Cleanup(func() { ok(s.t, ch.Close()) })
	cq := must(s.dev.CreateCQ(256, &verbs.CQInitAttr{Channel: ch}))(s.t)
	s.t.Cleanup(func() { ok(s.t, cq.Close()) })
	return cq
}

// xrcLab has two stations: a has initiators, b has targets and SRQs in one domain. Each SRQ has a
// PD, a CQ and a region.
type xrcLab struct {
	t          *testing.T
	a, b       *station
	sends      *verbs.CQ
	am         *verbs.MR
	domain     *verbs.XRCD
	initiators []*verbs.QP
	targets    []*verbs.QP
	srqs       []*xrcSRQ
}

type xrcSRQ struct {
	*verbs.SRQ
	cq *verbs.CQ
	mr *verbs.MR
}

func newXRCLab(t *testing.T, m medium, pairs, srqs int) *xrcLab {
	x := &xrcLab{t: t}
	x.a, x.b = m.stations(t, nil)
	x.am = x.a.reg(make([]byte, 1<<16), everyAccess)
	x.sends = x.a.cq()
	x.domain = must(x.b.dev.OpenXRCD(nil, 0))(t)
	t.Cleanup(func() { ok(t, x.domain.Close()) })
	for range srqs {
		x.srqs = append(x.srqs, x.srq(x.domain))
	}
	for range pairs {
		x.connect()
	}
	return x
}

// srq creates an SRQ of a domain.
func (x *xrcLab) srq(domain *verbs.XRCD) *xrcSRQ {
	t := x.t
	pd := must(x.b.dev.AllocPD())(t)
	t.Cleanup(func() { ok(t, pd.Close()) })
	s := &xrcSRQ{cq: x.b.cq(), mr: must(pd.RegMR(make([]byte, 1<<16), everyAccess))(t)}
	t.Cleanup(func() { ok(t, s.mr.Close()) })
	s.SRQ = must(pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 64, MaxSGE: 2}, XRCD: domain, CQ: s.cq}))(t)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

// connect creates an initiator and a target.
func (x *xrcLab) connect() {
	t := x.t
	i := must(x.a.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCSend, SendCQ: x.sends, Cap: verbs.QPCap{MaxSendWR: 64, MaxSendSGE: 2}}))(t)
	g := must(x.domain.CreateQP(&verbs.QPInitAttr{Type: verbs.XRCRecv}))(t)
	t.Cleanup(func() { ok(t, i.Close()); ok(t, g.Close()) })
	const (
		toInit = verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags
		toRTR  = verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
		toRTS  = verbs.QPAttrState | verbs.QPAttrSQPSN | verbs.QPAttrTimeout
	)
	for _, s := range []struct {
		own, peer *station
		qp, to    *verbs.QP
		rtr, rts  verbs.QPAttrMask
	}{
		{x.a, x.b, i, g, 0, verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry | verbs.QPAttrMaxQPRDAtomic},
		{x.b, x.a, g, i, verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer, 0},
	} {
		attr := verbs.QPAttr{
			PortNum: 1, QPAccessFlags: everyAccess, PathMTU: verbs.MTU1024, DestQPNum: s.to.Num(), RQPSN: 0xfffff0, SQPSN: 0xfffff0,
			MaxDestRDAtomic: 4, MaxRDAtomic: 4, MinRNRTimer: 1, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
			AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1,
				GRH: verbs.GRH{DGID: verbs.GIDFromAddr(s.peer.addr), SGIDIndex: s.own.gidIndex(), HopLimit: 1}},
		}
		for _, step := range []struct {
			to   verbs.QPState
			mask verbs.QPAttrMask
		}{{verbs.StateInit, toInit}, {verbs.StateRTR, toRTR | s.rtr}, {verbs.StateRTS, toRTS | s.rts}} {
			attr.QPState = step.to
			ok(t, s.qp.Modify(&attr, step.mask))
		}
	}
	x.initiators, x.targets = append(x.initiators, i), append(x.targets, g)
}

// do posts a request and returns its status.
func (x *xrcLab) do(initiator int, wr verbs.SendWR) verbs.WCStatus {
	settle(x.t, x.targets[initiator])
	defer settle(x.t, x.targets[initiator])
	x.t.Helper()
	wr.Flags |= verbs.SendSignaled
	ok(x.t, x.initiators[initiator].PostSend(&wr))
	return poll(x.t, x.sends).Status
}

func (x *xrcLab) fill(off, n int, seed byte) []byte {
	b := x.am.Buf()[off : off+n]
	for i := range b {
		b[i] = seed + byte(i*7)
	}
	return b
}

// TestXRC checks that any initiator reaches any SRQ of the domain, and the memory of that SRQ's PD.
func TestXRC(t *testing.T) { overMedia(t, anyInitiatorReachesAnySRQ) }

func anyInitiatorReachesAnySRQ(t *testing.T, m medium) {
	x := newXRCLab(t, m, 2, 3)
	for i := range x.initiators {
		for j, s := range x.srqs {
			for _, op := range []verbs.WROpcode{verbs.Send, verbs.SendWithImm, verbs.RDMAWriteWithImm} {
				const n = 5000
				what := fmt.Sprintf("%v by initiator %d to SRQ %d", op, i, j)
				clear(s.mr.Buf())
				ok(t, s.PostRecv(&verbs.RecvWR{WRID: 7, SGList: []verbs.SGE{s.mr.SGE(0, 100), s.mr.SGE(100, n)}}))
				want := x.fill(0, n, byte(10*i+j))
				if st := x.do(i, verbs.SendWR{Opcode: op, RemoteSRQN: s.Num(), ImmData: 0x12345678, SGList: []verbs.SGE{x.am.SGE(0, n)},
					RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey()}); st != verbs.WCSuccess {
					t.Fatalf("%s: %v", what, st)
				}
				wc := poll(t, s.cq)
				if wc.Status != verbs.WCSuccess || wc.WRID != 7 || wc.ByteLen != n || wc.QPNum != x.targets[i].Num() ||
					(wc.Flags&verbs.WCWithImm != 0) != (op != verbs.Send) || op != verbs.Send && wc.ImmData != 0x12345678 {
					t.Errorf("%s: %+v", what, wc)
				}
				if !bytes.Equal(s.mr.Buf()[:n], want) {
					t.Errorf("%s: the data differs", what)
				}
			}
			mem := verbs.SendWR{RemoteSRQN: s.Num(), RemoteAddr: s.mr.Addr(), RKey: s.mr.RKey()}
			write, read, add := mem, mem, mem
			want := bytes.Clone(x.fill(0, 3000, byte(50+i)))
			write.Opcode, write.SGList = verbs.RDMAWrite, []verbs.SGE{x.am.SGE(0, 3000)}
			read.Opcode, read.SGList = verbs.RDMARead, []verbs.SGE{x.am.SGE(8192, 3000)}
			add.Opcode, add.CompareAdd, add.SGList = verbs.AtomicFetchAndAdd, 1, []verbs.SGE{x.am.SGE(16384, 8)}
			for _, wr := range []verbs.SendWR{write, read, add} {
				if st := x.do(i, wr); st != verbs.WCSuccess {
					t.Fatalf("%v by initiator %d to SRQ %d: %v", wr.Opcode, i, j, st)
				}
			}
			if !bytes.Equal(x.am.Buf()[8192:8192+3000], want) || !bytes.Equal(x.am.Buf()[16384:16384+8], want[:8]) {
				t.Error("the data read differs from the data written")
			}
		}
	}
}

// TestXRCSharedSRQ sends messages of several packets from two initiators to one SRQ at the same
// time. Those of each arrive in order.
func TestXRCSharedSRQ(t *testing.T) { overMedia(t, twoInitiatorsShareSRQ) }

func twoInitiatorsShareSRQ(t *testing.T, m medium) {
	const n, messages = 3000, 20
	x := newXRCLab(t, m, 2, 1)
	s := x.srqs[0]
	for i := range messages / 2 {
		ok(t, s.PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{s.mr.SGE(i*n, n)}}))
	}
	x.fill(0, n, 3)
	for range messages / 2 {
		for _, qp := range x.initiators {
			ok(t, qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled,
				RemoteSRQN: s.Num(), SGList: []verbs.SGE{x.am.SGE(0, n)}}))
		}
	}
	came := map[uint32]int{}
	for i := range messages {
		wc := poll(t, s.cq)
		if wc.Status != verbs.WCSuccess || wc.ByteLen != n || !bytes.Equal(s.mr.Buf()[wc.WRID*n:][:n], x.am.Buf()[:n]) {
			t.Fatalf("message %d: %+v, or other data", i, wc)
		}
		came[wc.QPNum]++
		if i < messages/2 { // the rest is posted late, and the initiators wait
			ok(t, s.PostRecv(&verbs.RecvWR{WRID: wc.WRID, SGList: []verbs.SGE{s.mr.SGE(int(wc.WRID)*n, n)}}))
		}
	}
	for range messages {
		if wc := poll(t, x.sends); wc.Status != verbs.WCSuccess {
			t.Errorf("%+v", wc)
		}
	}
	for _, qp := range x.targets {
		if came[qp.Num()] != messages/2 {
			t.Errorf("%d messages arrived at QP %#x", came[qp.Num()], qp.Num())
		}
	}
}

// TestXRCRefused checks errors that fail an initiator and its target, but no other initiator.
func TestXRCRefused(t *testing.T) { overMedia(t, xrcRefused) }

func xrcRefused(t *testing.T, m medium) {
	for _, c := range []struct {
		name string
		wr   func(x *xrcLab) verbs.SendWR
		want verbs.WCStatus
	}{
		{"unknown SRQ", func(x *xrcLab) verbs.SendWR { return verbs.SendWR{Opcode: verbs.Send, RemoteSRQN: 0xfffff0} },
			verbs.WCRemAccessErr},
		{"SRQ of another domain", func(x *xrcLab) verbs.SendWR {
			other := must(x.b.dev.OpenXRCD(nil, 0))(x.t)
			x.t.Cleanup(func() { ok(x.t, other.Close()) })
			return verbs.SendWR{Opcode: verbs.Send, RemoteSRQN: x.srq(other).Num()}
		}, verbs.WCRemAccessErr},
		{"closed SRQ", func(x *xrcLab) verbs.SendWR {
			s := must(x.b.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 1}, XRCD: x.domain, CQ: x.srqs[0].cq}))(x.t)
			ok(x.t, s.Close())
			return verbs.SendWR{Opcode: verbs.Send, RemoteSRQN: s.Num()}
		}, verbs.WCRemAccessErr},
		{"memory of another SRQ's PD", func(x *xrcLab) verbs.SendWR {
			mr := x.srqs[1].mr
			return verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: []verbs.SGE{x.am.SGE(0, 8)},
				RemoteSRQN: x.srqs[0].Num(), RemoteAddr: mr.Addr(), RKey: mr.RKey()}
		}, verbs.WCRemAccessErr},
		{"message too long", func(x *xrcLab) verbs.SendWR {
			ok(x.t, x.srqs[0].PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{x.srqs[0].mr.SGE(0, 10)}}))
			return verbs.SendWR{Opcode: verbs.Send, RemoteSRQN: x.srqs[0].Num(), SGList: []verbs.SGE{x.am.SGE(0, 11)}}
		}, verbs.WCRemInvReqErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newXRCLab(t, m, 2, 2)
			if st := x.do(0, c.wr(x)); st != c.want {
				t.Errorf("%v, want %v", st, c.want)
			}
			for i, want := range []verbs.QPState{verbs.StateErr, verbs.StateRTS} {
				// The target enters ERR soon after its answer.
				if a := x.initiators[i].State(); a != want || !eventually(func() bool { return x.targets[i].State() == want }) {
					b := x.targets[i].State()
					t.Errorf("initiator %d is %v, its target %v, want %v", i, a, b, want)
				}
			}
			s := x.srqs[1]
			ok(t, s.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{s.mr.SGE(0, 10)}}))
			if st := x.do(1, verbs.SendWR{Opcode: verbs.Send, RemoteSRQN: s.Num(),
				SGList: []verbs.SGE{x.am.SGE(0, 10)}}); st != verbs.WCSuccess {
				t.Errorf("the other initiator: %v", st)
			}
			if wc := poll(t, s.cq); wc.Status != verbs.WCSuccess || wc.QPNum != x.targets[1].Num() {
				t.Errorf("%+v", wc)
			}
		})
	}
}
