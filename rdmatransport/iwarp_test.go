package rdmatransport_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// iwarpPair has two connected iWARP QPs on two devices of one switch.
type iwarpPair struct {
	a, b       *rdmacm.Conn
	mrA, mrB   *verbs.MR
	bufA, bufB []byte
}

const iwarpAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

func newIWARPPair(t *testing.T, m medium, cfgA, cfgB iwarp.Config, size int) *iwarpPair {
	t.Helper()
	hostA, hostB := m.hosts(t)
	device := func(host stacktest.End, cfg iwarp.Config) *verbs.Device {
		dev, err := rdmatransport.Open(host.Host, &rdmatransport.Config{IWARP: cfg})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { host.Host.Close() })
		return dev
	}
	devA, devB := device(hostA, cfgA), device(hostB, cfgB)
	p := &iwarpPair{bufA: make([]byte, size), bufB: make([]byte, size)}
	region := func(dev *verbs.Device, buf []byte) *verbs.MR {
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		mr, err := pd.RegMR(buf, iwarpAccess)
		if err != nil {
			t.Fatal(err)
		}
		return mr
	}
	p.mrA, p.mrB = region(devA, p.bufA), region(devB, p.bufB)
	config := func(mr *verbs.MR) *rdmacm.Config {
		return &rdmacm.Config{
			Transport: verbs.IWARP, PD: mr.PD(),
			Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 8, MaxRecvSGE: 8, MaxInlineData: 64},
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	at := netip.AddrPortFrom(hostB.Addr, 7471).String()
	l, err := rdmacm.Listen(devB, at, config(p.mrB))
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		var err error
		p.b, err = l.Accept(ctx)
		accepted <- err
	}()
	if p.a, err = rdmacm.Dial(ctx, devA, at, config(p.mrA)); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.a.Close()
		p.b.Close()
		l.Close()
		for _, mr := range []*verbs.MR{p.mrA, p.mrB} {
			if err := mr.Close(); err != nil {
				t.Error(err)
			}
			pd := mr.PD()
			if err := pd.Close(); err != nil {
				t.Error(err)
			}
			if err := pd.Device().Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

// poll waits for a completion of a CQ that has a completion channel.
func poll(t testing.TB, cq *verbs.CQ) verbs.WC {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var wc [1]verbs.WC
	for armed := false; ; {
		n, err := cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case n == 1:
			return wc[0]
		case !armed:
			err = cq.ReqNotify(false) // and poll again
		default:
			if _, err = cq.Channel().GetEvent(ctx); err == nil {
				err = cq.AckEvents(1)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		armed = !armed
	}
}

// TestIWARPOperations checks every operation, with every combination of negotiated MPA options.
func TestIWARPOperations(t *testing.T) { overMedia(t, iwarpOperations) }

func iwarpOperations(t *testing.T, m medium) {
	for name, cfg := range map[string][2]iwarp.Config{
		"default":                  {},
		"markers":                  {{Markers: true}, {Markers: true}},
		"markers in one direction": {{Markers: true}, {}},
		"no CRC":                   {{NoCRC: true}, {NoCRC: true}},
		"revision 1":               {{Revision: 1}, {}},
		"no RTR":                   {{NoPeerToPeer: true}, {}},
	} {
		t.Run(name, func(t *testing.T) {
			const size = 1 << 20
			p := newIWARPPair(t, m, cfg[0], cfg[1], size)
			sizes := []int{0, 1, 3, 1400, 1401, 65536, 300_001}
			if name == "default" {
				sizes = append(sizes, size)
			}
			for _, n := range sizes {
				rand.Read(p.bufA[:n])
				post := func(wr *verbs.SendWR) verbs.WC {
					t.Helper()
					settle(t, p.b.QP())
					defer settle(t, p.b.QP())
					wr.Flags |= verbs.SendSignaled
					if err := p.a.QP().PostSend(wr); err != nil {
						t.Fatal(err)
					}
					wc := poll(t, p.a.SendCQ())
					if wc.Status != verbs.WCSuccess {
						t.Fatalf("%v of %d bytes: %v", wr.Opcode, n, wc.Status)
					}
					return wc
				}
				recv := func() verbs.WC {
					t.Helper()
					wc := poll(t, p.b.RecvCQ())
					if wc.Status != verbs.WCSuccess {
						t.Fatalf("receive: %v", wc.Status)
					}
					return wc
				}
				same := func(what string) {
					t.Helper()
					if !bytes.Equal(p.bufA[:n], p.bufB[:n]) {
						t.Fatalf("%s of %d bytes: data differ", what, n)
					}
				}
				if err := p.b.QP().PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{p.mrB.SGE(0, size)}},
					&verbs.RecvWR{WRID: 2}); err != nil {
					t.Fatal(err)
				}
				half := n / 2
				post(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{p.mrA.SGE(0, half), p.mrA.SGE(half, n-half)}})
				if wc := recv(); int(wc.ByteLen) != n {
					t.Fatalf("SEND of %d bytes: %d received", n, wc.ByteLen)
				}
				same("SEND")
				rand.Read(p.bufA[:n])
				post(&verbs.SendWR{
					Opcode: verbs.RDMAWriteWithImm, SGList: []verbs.SGE{p.mrA.SGE(0, n)}, ImmData: 0xdecade,
					RemoteAddr: p.mrB.Addr(), RKey: p.mrB.RKey(),
				})
				if wc := recv(); int(wc.ByteLen) != n || wc.ImmData != 0xdecade || wc.Opcode != verbs.WCRecvRDMAWithImm {
					t.Fatalf("WRITE with immediate of %d bytes: %+v", n, wc)
				}
				same("WRITE")
				rand.Read(p.bufB[:n])
				wc := post(&verbs.SendWR{
					Opcode: verbs.RDMARead, SGList: []verbs.SGE{p.mrA.SGE(0, half), p.mrA.SGE(half, n-half)},
					RemoteAddr: p.mrB.Addr(), RKey: p.mrB.RKey(),
				})
				if int(wc.ByteLen) != n {
					t.Fatalf("READ of %d bytes: %d", n, wc.ByteLen)
				}
				same("READ")
			}
			clear(p.bufA[:16])
			clear(p.bufB[:16])
			p.bufB[0] = 7
			for _, op := range []verbs.WROpcode{verbs.AtomicFetchAndAdd, verbs.AtomicCmpAndSwp} {
				wr := &verbs.SendWR{
					Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.mrA.SGE(0, 8)}, CompareAdd: 5, Swap: 99,
					RemoteAddr: p.mrB.Addr(), RKey: p.mrB.RKey(),
				}
				if op == verbs.AtomicCmpAndSwp {
					wr.CompareAdd = 12
				}
				settle(t, p.b.QP())
				if err := p.a.QP().PostSend(wr); err != nil {
					t.Fatal(err)
				}
				if wc := poll(t, p.a.SendCQ()); wc.Status != verbs.WCSuccess || wc.ByteLen != 8 {
					t.Fatalf("%v: %+v", op, wc)
				}
				settle(t, p.b.QP())
			}
			if p.bufA[0] != 12 || p.bufB[0] != 99 {
				t.Fatalf("atomics: found %d, left %d", p.bufA[0], p.bufB[0])
			}
		})
	}
}

// TestSharedByBothTransports checks that a RoCEv2 QP and an iWARP QP of one device share PD, MR and
// CQs, and that one listener accepts both.
func TestSharedByBothTransports(t *testing.T) { overMedia(t, sharedByBothTransports) }

func sharedByBothTransports(t *testing.T, m medium) {
	const streams, size, adds = 2, 50_000, 100
	type end struct {
		*station
		cq    *verbs.CQ
		mr    *verbs.MR
		buf   []byte
		conns map[verbs.Transport]*rdmacm.Conn
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	open := func(s *station) *end {
		e := &end{station: s, buf: make([]byte, 8*size), cq: s.cq(), conns: map[verbs.Transport]*rdmacm.Conn{}}
		e.mr = s.reg(e.buf, iwarpAccess)
		t.Cleanup(func() {
			for _, c := range e.conns {
				check(c.Close())
			}
		})
		return e
	}
	stationA, stationB := m.stations(t, nil)
	a, b := open(stationA), open(stationB)
	config := func(e *end) *rdmacm.Config {
		return &rdmacm.Config{
			PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SQSigAll: true,
			Transports: []verbs.Transport{verbs.RoCEv2, verbs.IWARP},
			Cap:        verbs.QPCap{MaxSendWR: 256, MaxRecvWR: 16, MaxSendSGE: 2, MaxRecvSGE: 2},
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	l, err := rdmacm.Listen(b.dev, b.at(7471), config(b))
	check(err)
	defer l.Close()
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		cfg := config(a)
		cfg.Transports, cfg.Transport = nil, transport
		var o *rdmacm.Conn
		accepted := make(chan error, 1)
		go func() {
			var err error
			o, err = l.Accept(ctx)
			accepted <- err
		}()
		c, err := rdmacm.Dial(ctx, a.dev, b.at(7471), cfg)
		check(err)
		a.conns[transport] = c
		check(<-accepted)
		b.conns[o.Transport()] = o
		if c.Transport() != transport || o.Transport() != transport {
			t.Fatalf("dialled %v: %v and %v", transport, c.Transport(), o.Transport())
		}
	}

	// One CQ has the completions of both transports: a.cq those of all requests, b.cq those of the
	// receives.
	rand.Read(a.buf[:size])
	byQP := map[uint32]verbs.Transport{}
	at := map[verbs.Transport]int{verbs.RoCEv2: 1, verbs.IWARP: 2} // places in b's region
	for transport, c := range a.conns {
		byQP[c.QP().Num()] = transport
		o := b.conns[transport]
		byQP[o.QP().Num()] = transport
		check(o.QP().PostRecv(&verbs.RecvWR{WRID: 7, SGList: []verbs.SGE{b.mr.SGE((4+at[transport])*size, size)}}))
		wr := func(op verbs.WROpcode, sge verbs.SGE, off int) *verbs.SendWR {
			return &verbs.SendWR{Opcode: op, SGList: []verbs.SGE{sge}, RemoteAddr: b.mr.Addr() + uint64(off), RKey: b.mr.RKey()}
		}
		check(c.QP().PostSend(
			wr(verbs.RDMAWrite, a.mr.SGE(0, size), at[transport]*size),
			wr(verbs.RDMARead, a.mr.SGE(at[transport]*size, size), at[transport]*size),
			wr(verbs.Send, a.mr.SGE(0, size), 0),
		))
		for range adds {
			add := wr(verbs.AtomicFetchAndAdd, a.mr.SGE(7*size+8*at[transport], 8), 0)
			add.CompareAdd = 1
			check(c.QP().PostSend(add))
		}
	}
	done := map[verbs.Transport]int{}
	for range streams * (3 + adds) {
		wc := poll(t, a.cq)
		if wc.Status != verbs.WCSuccess {
			t.Fatalf("%v: %+v", byQP[wc.QPNum], wc)
		}
		done[byQP[wc.QPNum]]++
	}
	for range streams {
		if wc := poll(t, b.cq); wc.Status != verbs.WCSuccess || wc.ByteLen != size {
			t.Fatalf("%v: %+v", byQP[wc.QPNum], wc)
		}
	}
	for transport, i := range at {
		settle(t, b.conns[transport].QP())
		if done[transport] != 3+adds {
			t.Errorf("%v: %d completions", transport, done[transport])
		}
		for what, got := range map[string][]byte{"WRITE": b.buf[i*size:], "READ": a.buf[i*size:], "SEND": b.buf[(4+i)*size:]} {
			if !bytes.Equal(got[:size], a.buf[:size]) {
				t.Errorf("%s over %v: data differ", what, transport)
			}
		}
	}
	if sum := binary.NativeEndian.Uint64(b.buf); sum != streams*adds {
		t.Errorf("%d additions of %d", sum, streams*adds)
	}
}

// A responder that closes a connection because of MPA's revision gets a second request, from the
// same address and port. The ID is bound to them.
func TestRevisionRetriedFromTheSamePort(t *testing.T) {
	for name, refuse := range map[string]func(stack.Stream){
		"RST": stack.Stream.Abort,
		"FIN": func(s stack.Stream) { s.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			lan := new(pipe.Switch)
			a, b := newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
			l := must(b.host.ListenStream(netip.MustParseAddrPort("10.0.0.2:7471")))(t)
			defer l.Close()
			done := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				conn, err := rdmacm.Dial(ctx, a.dev, "10.0.0.2:7471", &rdmacm.Config{Transport: verbs.IWARP})
				if err == nil {
					err = conn.Close()
				}
				done <- err
			}()
			var from [2]string
			for i, revision := range []byte{2, 1} {
				s := must(l.Accept())(t).(stack.Stream)
				defer s.Abort()
				from[i] = s.RemoteAddr().String()
				head := make([]byte, mpa.HeaderLen)
				must(io.ReadFull(s, head))(t)
				if head[17] != revision {
					t.Fatalf("request %x, want revision %d", head, revision)
				}
				if revision == 2 {
					must(io.ReadFull(s, make([]byte, mpa.EnhancedLen)))(t)
					refuse(s)
					continue
				}
				f := mpa.Frame{Reply: true, CRC: true, Revision: 1}
				reply := make([]byte, f.Len())
				must(f.Encode(reply))(t)
				must(s.Write(reply))(t)
				go func() {
					_, _ = io.Copy(io.Discard, s)
					s.Close()
				}()
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if from[0] != from[1] {
				t.Errorf("from %v and %v", from[0], from[1])
			}
		})
	}
}

// TestIWARPAnswerToDirect checks an accepting side without peer-to-peer mode. It may send after its
// first received message, even if that message was copied directly. It must send at once, without
// waiting for the periodic wakeup every 50 ms.
func TestIWARPAnswerToDirect(t *testing.T) {
	late := 0
	const tries = 5
	for range tries {
		p := newIWARPPair(t, direct, iwarp.Config{NoPeerToPeer: true}, iwarp.Config{}, 64)
		for _, c := range []*rdmacm.Conn{p.a, p.b} {
			ok(t, c.QP().PostRecv(&verbs.RecvWR{}))
		}
		// Waits.
		ok(t, p.b.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
		began := time.Now()
		ok(t, p.a.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
		for _, cq := range []*verbs.CQ{p.a.SendCQ(), p.b.SendCQ(), p.a.RecvCQ(), p.b.RecvCQ()} {
			if wc := poll(t, cq); wc.Status != verbs.WCSuccess {
				t.Errorf("status %v", wc.Status)
			}
		}
		if time.Since(began) > 25*time.Millisecond {
			late++
		}
	}
	if late == tries {
		t.Error("the answer always waits for a periodic wakeup")
	}
}

// TestIWARPInvalidateShared checks that an iWARP peer may not invalidate a region whose PD has RoCE
// QPs too.
func TestIWARPInvalidateShared(t *testing.T) { overMedia(t, iwarpInvalidateShared) }

func iwarpInvalidateShared(t *testing.T, m medium) {
	for _, shared := range []bool{false, true} {
		p := newIWARPPair(t, m, iwarp.Config{}, iwarp.Config{}, 64)
		mr := must(p.mrB.PD().RegMR(make([]byte, 64), iwarpAccess))(t)
		want := verbs.StateRTS
		if shared {
			want = verbs.StateErr
			qp := must(p.mrB.PD().CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: p.b.SendCQ(),
				RecvCQ: p.b.RecvCQ(), Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))(t)
			defer func() { ok(t, qp.Close()) }()
		}
		ok(t, p.b.QP().PostRecv(&verbs.RecvWR{}))
		ok(t, p.a.QP().PostSend(&verbs.SendWR{Opcode: verbs.SendWithInv, Flags: verbs.SendSignaled, InvalidateRKey: mr.RKey()}))
		if wc := poll(t, p.b.RecvCQ()); (wc.Status == verbs.WCSuccess) != !shared || p.b.QP().State() != want {
			t.Errorf("shared %t: %v, and the QP is in %v, want %v", shared, wc.Status, p.b.QP().State(), want)
		}
		defer func() { ok(t, mr.Close()) }()
	}
}
