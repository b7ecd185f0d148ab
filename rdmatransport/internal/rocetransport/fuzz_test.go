package rocetransport_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// script reads a fuzzer's bytes as decisions, and returns 0 after the end.
type script []byte

func (s *script) more() bool { return len(*s) > 0 }

func (s *script) byte() byte {
	if !s.more() {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

func (s *script) n(limit int) int { return int(s.byte()) % limit }

func choose[T any](s *script, of ...T) T { return of[s.n(len(of))] }

// random adds seed scripts, the same in every run.
func random(f *testing.F, count, size int) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range count {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(rnd.Uint32())
		}
		f.Add(b)
	}
}

// FuzzPackets is a peer that sends any sequence of valid packets to a QP with posted work. There is
// no panic, and no change outside of the regions that the peer may write. Every request completes
// once and in order, and memory is bounded.
func FuzzPackets(f *testing.F) {
	random(f, 100, 500)
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) { bounded(t, 16<<20, func() { fuzzPackets(t, script(data), verbs.RC) }) })
	})
}

// FuzzUCPackets is FuzzPackets for an unreliable connection.
func FuzzUCPackets(f *testing.F) {
	random(f, 100, 500)
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) { bounded(t, 16<<20, func() { fuzzPackets(t, script(data), verbs.UC) }) })
	})
}

// bounded fails a run that allocates more memory than 200 packets of a peer justify, even if it is
// freed again.
func bounded(t *testing.T, most uint64, run func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > most {
		t.Errorf("%d bytes were allocated, want at most %d", n, most)
	}
}

func fuzzPackets(t *testing.T, s script, service verbs.QPType) {
	c := config{service: service, mtu: verbs.MTU256, size: 2048, timeout: 1, retry: 1, rnr: 2, minRNR: 1, rd: 2, destRD: 2, maxWR: 8,
		rqPSN: 1<<24 - 3, sqPSN: 1<<24 - 3, trimmedDSCP: trimmedDSCP}
	r := newRig(t, c)
	z := &fuzz{t: t, r: r}
	z.secret = fill(4096, 5)
	z.readable = fill(4096, 6)
	z.secretMR = must(r.pd.RegMR(z.secret, 0))
	z.readableMR = must(r.pd.RegMR(z.readable, verbs.AccessRemoteRead))
	z.marks = service == verbs.RC && s.n(2) == 0
	z.begin()
	for i := 0; s.more() && i < 200; i++ {
		switch s.n(16) {
		case 0:
			sleep(choose(&s, time.Microsecond, 50*time.Microsecond, 5*time.Millisecond, time.Second))
		case 1, 2, 3:
			z.postSend(&s)
		case 4, 5:
			z.postRecv(&s)
		case 6, 7, 8, 9:
			z.respond(&s)
		case 10:
			switch z.trims = true; s.n(8) {
			case 0: // with a new connection
				z.end()
				r.modify(verbs.StateReset)
				r.connect()
				z.trims = false
				z.begin()
			case 1, 2, 3:
				z.respond(&s)
			default:
				z.send(&s)
			}
			z.trims = false
		default:
			z.send(&s)
		}
		r.guards()
		z.completions()
		if r.qp.State() == verbs.StateSQE && s.n(2) == 0 {
			r.modify(verbs.StateRTS)
			z.failed[sends], z.cause[sends] = false, false
		}
	}
	z.end()
	if !bytes.Equal(z.secret, fill(4096, 5)) || !bytes.Equal(z.readable, fill(4096, 6)) {
		t.Error("a region that the peer may not write has changed")
	}
}

// fuzz is the state of FuzzPackets.
type fuzz struct {
	t *testing.T
	r *rig

	secret, readable     []byte
	secretMR, readableMR *verbs.MR

	marks             bool // the peer marks its packets
	trims             bool // a switch trims the next packet
	request, response int  // PSNs that are probably next
	top               int  // one past the highest PSN of the peer's requests
	posted, complete  [2]uint64
	failed, cause     [2]bool // a completion was neither success nor flush
}

const sends, recvs = 0, 1

// begin records a new connection.
func (z *fuzz) begin() {
	z.request, z.response = 0, 0
	if z.marks { // packets after a gap may be kept
		z.r.lossy(0)
		z.request = 2
	}
	z.top = z.request
}

func (z *fuzz) postSend(s *script) {
	wr := z.r.wr(z.posted[sends], choose(s, verbs.Send, verbs.RDMAWrite, verbs.RDMARead, verbs.RDMARead,
		verbs.AtomicFetchAndAdd, verbs.SendWithImm, verbs.Flush, verbs.AtomicWrite), choose(s, 8, 0, 700, 256, 2048, 2049))
	switch wr.Opcode {
	case verbs.AtomicFetchAndAdd, verbs.AtomicWrite:
		wr.SGList[0].Length = 8
	case verbs.Flush:
		wr.SGList, wr.FlushType = nil, verbs.FlushGlobal
	}
	if s.n(8) == 0 {
		wr.Flags |= verbs.SendFence
	}
	if z.r.c.service == verbs.UC && len(wr.SGList) > 0 && s.n(8) == 0 {
		wr.SGList[0].LKey++
	}
	if z.r.qp.PostSend(wr) == nil {
		z.posted[sends]++
	}
}

func (z *fuzz) postRecv(s *script) {
	mr := choose(s, z.r.mr, z.r.mr, z.r.mr, z.secretMR)
	wr := &verbs.RecvWR{WRID: z.posted[recvs], SGList: []verbs.SGE{mr.SGE(0, choose(s, 2048, 100, 0, 2049, 4096))}}
	if z.r.qp.PostRecv(wr) == nil {
		z.posted[recvs]++
	}
}

// send returns the next request of the peer, or a similar one.
func (z *fuzz) send(s *script) {
	r := z.r
	op := requestOpcodes[s.n(len(requestOpcodes))]
	if r.c.service == verbs.UC {
		op |= wire.UCSendFirst
	}
	psn := z.request + choose(s, 0, 0, 0, 0, 0, 0, -1, 1, -2, -5, 100)
	n := 0
	if op.Info().HasPayload() {
		n = choose(s, 256, 256, 8, 0, 1, 255, 257, 3)
	}
	mr := choose(s, r.mr, r.mr, r.mr, r.mr, z.readableMR, z.secretMR)
	addr := mr.Addr() + uint64(choose[int64](s, 0, 0, 0, 8, 1, 1792, 2048, -1, -8, 1<<40))
	rkey := choose(s, mr.RKey(), mr.RKey(), mr.RKey(), mr.RKey(), mr.LKey(), 0)
	length := choose(s, uint32(n), uint32(n), 512, 700, 2048, 0, 1<<30, 1<<32-1)
	p := r.req(op, psn, fill(n, byte(psn)), reth(addr, rkey, length), func(p *wire.Packet) {
		p.AtomicETH = wire.AtomicETH{Addr: addr, RKey: rkey, Swap: 1, Compare: uint64(s.byte())}
		p.AckReq = s.n(2) == 0
		p.FETH = wire.FETH{Placement: choose[uint8](s, wire.FlushGlobal, wire.FlushGlobal, wire.FlushPersistent, 0, 15),
			Selectivity: choose[uint8](s, 0, 1, 2)}
	})
	if z.marks {
		m := r.mark(&p)
		p.Reserved7 = m.Newest()
		if psn < z.top {
			p.Reserved7 = m.Again()
		}
		z.top = max(z.top, psn+1)
		p.Reserved7 = choose(s, p.Reserved7, p.Reserved7, p.Reserved7, p.Reserved7, p.Reserved7, p.Reserved7, m.Newest(), m.Again(), 0)
	}
	switch {
	case z.trims:
		z.giveTrimmed(s, p)
		return
	case s.n(8) == 0:
		r.giveFrame(p, p, p)
	default:
		r.give(p)
	}
	if psn == z.request {
		z.request++
		if op == wire.RCReadRequest && length <= 2048 {
			z.request += max(0, int(length)-1) / 256
		}
	}
}

// respond returns an answer of the peer to what it last saw, or a similar one.
func (z *fuzz) respond(s *script) {
	r := z.r
	if sent := r.take(); len(sent) > 0 {
		for i := range sent {
			if sent[i].Opcode.Info().Request() {
				z.response = int(wire.PSNDiff(sent[i].PSN, r.c.sqPSN))
				break
			}
		}
	}
	op := choose(s, wire.RCAck, wire.RCAck, wire.RCReadResponseOnly, wire.RCReadResponseFirst, wire.RCReadResponseMiddle,
		wire.RCReadResponseLast, wire.RCAtomicAck)
	psn := z.response + choose(s, 0, 0, 0, 0, 1, 2, 3, -1, 9, 1000)
	n := 0
	if op.Info().HasPayload() {
		n = choose(s, 256, 256, 8, 188, 0, 1, 257)
	}
	syndrome := choose[uint8](s, wire.AckUnlimited, wire.AckUnlimited, wire.AckUnlimited, 0, wire.NakPSNSeq, wire.RNRNak|1,
		wire.NakRemoteAccess, s.byte())
	p := r.resp(op, psn, syndrome, fill(n, byte(psn)))
	if z.marks {
		p = marked(p)[0]
		if op == wire.RCAck && s.n(2) == 0 { // the packets that the peer keeps
			p.Payload = z.sack(s)
		}
	}
	if z.trims {
		z.giveTrimmed(s, p)
		return
	}
	r.give(p)
	z.response = psn + 1
}

// giveTrimmed passes on what a switch leaves of a packet. It changes no memory.
func (z *fuzz) giveTrimmed(s *script, p wire.Packet) {
	was := bytes.Clone(z.r.buf)
	d := z.r.trimmed(p, min(p.Size(), choose(s, 12, 24, 40, 13, 11, 1)))
	z.r.port.receive(d)
	if !bytes.Equal(z.r.buf, was) {
		z.t.Fatal("a trimmed packet has changed memory")
	}
}

// sack returns a selective acknowledgement with any items, usually with an end.
func (z *fuzz) sack(s *script) (sack wire.Sack) {
	for range s.n(17) {
		sack = binary.BigEndian.AppendUint16(sack,
			choose[uint16](s, 1, 2, 3, 1<<14|1, 1<<14|2, 1<<14|5, 1<<15|1, 1<<15|0x2aaa, 1<<14|20, 1<<15-1, 1<<14, 1<<15))
	}
	if s.n(4) != 0 {
		sack = append(sack, 0, 0)
	}
	for len(sack)%4 != 0 {
		sack = append(sack, 0, 0)
	}
	return sack
}

// completions checks completions: each request once and in order, no success after an error, and
// one error that is no flush.
func (z *fuzz) completions() {
	for i, cq := range []*verbs.CQ{z.r.scq, z.r.rcq} {
		for _, wc := range poll(z.t, cq) {
			switch {
			case wc.WRID != z.complete[i]:
				z.t.Fatalf("request %d completes, want %d", wc.WRID, z.complete[i])
			case z.failed[i] && wc.Status == verbs.WCSuccess, z.cause[i] && wc.Status != verbs.WCWRFlushErr:
				z.t.Fatalf("%v after an error", wc.Status)
			}
			z.complete[i]++
			z.failed[i] = wc.Status != verbs.WCSuccess
			z.cause[i] = z.cause[i] || z.failed[i] && wc.Status != verbs.WCWRFlushErr
		}
		if z.complete[i] > z.posted[i] {
			z.t.Fatalf("%d completions of %d requests", z.complete[i], z.posted[i])
		}
		if state := z.r.qp.State(); z.failed[i] && state != verbs.StateErr && (state != verbs.StateSQE || i == recvs) {
			z.t.Fatalf("in %v after an error", z.r.qp.State())
		}
	}
}

// end flushes posted requests, after which everything must be complete.
func (z *fuzz) end() {
	z.r.modify(verbs.StateErr)
	z.completions()
	if z.complete != z.posted {
		z.t.Fatalf("%d requests are complete of %d", z.complete, z.posted)
	}
	z.failed, z.cause = [2]bool{}, [2]bool{}
	z.r.take()
}

// FuzzFrames passes frames of arbitrary bytes, in segments of any size. If the first byte is odd,
// every segment is changed to be for the QP, with a valid ICRC.
func FuzzFrames(f *testing.F) {
	random(f, 100, 60)
	for op := range 256 {
		b := make([]byte, 64)
		b[0], b[1], b[2] = 1, 61, byte(op)
		f.Add(b)
	}
	r := newRig(f, config{size: 4096})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 2 {
			return
		}
		r.t, r.port.t = t, t
		defer func() { r.t, r.port.t = f, f }()
		r.modify(verbs.StateReset)
		r.connect()
		r.recv(1, 0, 4096)
		was := bytes.Clone(r.buf)
		good := b[0]&1 != 0
		d := &stack.Datagram{Src: r.them, Dst: r.us, SrcPort: 50000, SegmentSize: int(b[1]) + 1}
		d.Payload = bytes.Clone(b[2:])
		d.Header = make([]byte, headerLen(r.us))
		h := make([]byte, headerLen(r.us))
		for i := 0; good && i*d.SegmentSize < len(d.Payload); i++ {
			seg := d.Payload[i*d.SegmentSize : min((i+1)*d.SegmentSize, len(d.Payload))]
			if len(seg) < wire.BTHLen+wire.ICRCLen {
				break
			}
			seg[1] &= 0xf0
			binary.BigEndian.PutUint16(seg[2:], wire.DefaultPKey)
			binary.BigEndian.PutUint32(seg[4:], r.qp.Num())
			binary.BigEndian.PutUint32(seg[8:], uint32(i))
			putHeader(h, d.Src, d.Dst, d.SrcPort, i, len(seg))
			wire.PutICRC(h, seg)
		}
		putHeader(d.Header, d.Src, d.Dst, d.SrcPort, 0, len(d.Payload))
		r.port.receive(d)
		r.guards()
		r.take()
		poll(t, r.rcq)
		if !good && !bytes.Equal(r.buf, was) {
			t.Error("a frame without a valid ICRC has changed memory")
		}
	})
}
