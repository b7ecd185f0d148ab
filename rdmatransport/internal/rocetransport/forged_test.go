package rocetransport_test

// Forged request packets.

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/internal/sacktest"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// amount is the size of a test: by default, in the system run, and in the long run.
func amount(normal, system, long int) int {
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		return long
	case os.Getenv("SOFTRNIC_SYSTEM") != "":
		return system
	}
	return normal
}

// forgeries is the number of forged packets in a test of this file.
func forgeries() int { return amount(1<<13, 1<<15, 1<<20) }

// forger forges request packets of a QP's peer. It knows everything that the peer knows, including
// keys and mark, except the expected PSN. Its PSNs are ahead by less than the span of kept
// packets, often by little. If packets are executed only in order, a forged one is never executed.
type forger struct {
	*rig
	rand *rand.Rand
	sent int
}

// packet returns a packet that is after the expected one, and within the span.
func (f *forger) packet() wire.Packet {
	x := f.rand
	op := []wire.Opcode{wire.RCSendOnly, wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCWriteOnly, wire.RCWriteMiddle,
		wire.RCWriteLast, wire.RCReadRequest, wire.RCFetchAdd, 0x1f}[x.IntN(10)]
	n := 0
	if op.Info().HasPayload() {
		if n = f.mtu(); x.IntN(2) == 0 {
			n = 4 * x.IntN(f.mtu()/4)
		}
	}
	attr, _, err := f.qp.Query()
	if err != nil {
		f.t.Fatal(err)
	}
	ahead := 1 + x.Uint32N(receive.Span(send.DefaultWindow, 1024)-1)
	if x.IntN(2) == 0 {
		ahead = 1 + x.Uint32N(8)
	}
	p := f.req(op, 0, bytes.Repeat([]byte{0x66}, n), f.atomic(0, 0, 1), f.at(0, uint32(n)))
	p.PSN = wire.PSNAdd(attr.RQPSN, ahead)
	p.AckReq = x.IntN(4) == 0
	p.Reserved7 = f.mark(&p).Newest()
	if x.IntN(2) == 0 {
		p.Reserved7 = f.mark(&p).Again()
	}
	return p
}

func (f *forger) give(n int) {
	for range n {
		f.rig.give(f.packet())
	}
	f.sent += n
}

// keepsNothing checks that no kept packet is reported to the peer.
func (r *rig) keepsNothing() {
	r.t.Helper()
	for _, p := range r.take() {
		if len(p.Payload) != 0 {
			r.t.Fatalf("%s reports kept packets: %v", r.brief(&p), sacktest.Distances(p.Payload))
		}
	}
}

// TestForgedWithoutLoss checks that without a loss no packet is kept, and that everything arrives
// as without a forger.
func TestForgedWithoutLoss(t *testing.T) {
	run(t, "idle", config{timeout: 14}, func(t *testing.T, r *rig) {
		f := &forger{rig: r, rand: rand.New(rand.NewPCG(1, 1))}
		want := bytes.Clone(r.buf)
		r.recv(0, 0, 4096)
		for range forgeries() / 64 {
			f.give(64)
			r.keepsNothing()
			sleep(time.Millisecond)
		}
		r.completions(r.rcq)
		for psn := range 2000 {
			r.give(marked(r.nothing(psn))...)
		}
		r.give(marked(r.req(wire.RCSendOnly, 2000, want[8:16], ackReq))...)
		r.completions(r.rcq, "0 SUCCESS RECV 8")
		if copy(want, want[8:16]); !bytes.Equal(r.buf, want) {
			t.Error("memory has changed")
		}
		r.state(verbs.StateRTS)
	})
	run(t, "busy", config{timeout: 14, rnr: 7}, func(t *testing.T, r *rig) {
		f := &forger{rig: r, rand: rand.New(rand.NewPCG(1, 2))}
		for i := range forgeries() / 8 {
			size := 4 * (1 + i%200)
			if i%3 == 0 { // its receive request is posted later, and it is retransmitted
				r.give(marked(r.req(wire.RCSendOnly, i, fill(size, byte(i)), ackReq))...)
				f.give(2)
				r.recv(uint64(i), 1024, 1024)
				r.give(marked(r.req(wire.RCSendOnly, i, fill(size, byte(i)), ackReq))...)
				f.give(6)
			} else {
				f.give(4)
				r.recv(uint64(i), 1024, 1024)
				r.give(marked(r.req(wire.RCSendOnly, i, fill(size, byte(i)), ackReq))...)
				f.give(4)
			}
			r.completions(r.rcq, fmt.Sprintf("%d SUCCESS RECV %d", i, size))
			if !bytes.Equal(r.buf[1024:][:size], fill(size, byte(i))) {
				t.Fatalf("message %d holds %x", i, r.buf[1024:][:size])
			}
			r.keepsNothing()
			sleep(100 * time.Microsecond)
		}
		r.state(verbs.StateRTS)
	})
}

// lossyStream sends messages between two devices over a link that loses packets.
type lossyStream struct {
	from, to *rig
	rand     *rand.Rand
	perMille int // of the packets that are lost, in each direction
	most     int // messages in flight
	flights  [2][]flight

	posted, done, got int
}

const (
	streamSlots = 64
	streamSlot  = 8 << 10 // size of the largest message
)

// message returns the length of message i and its offset in both memories. SENDs and WRITEs
// alternate.
func (s *lossyStream) message(i int) (off, n int) {
	return i % streamSlots * streamSlot, 1 + i*7919%[]int{8, streamSlot}[i/100%2]
}

func (s *lossyStream) post(i int) {
	off, n := s.message(i)
	copy(s.from.buf[off:], fill(n, byte(i)))
	wr := &verbs.SendWR{WRID: uint64(i), Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{s.from.mr.SGE(off, n)},
		RemoteAddr: s.to.mr.Addr() + uint64(off), RKey: s.to.mr.RKey()}
	if i%2 == 1 {
		wr.Opcode = verbs.RDMAWrite
	}
	s.from.post(wr)
}

func (s *lossyStream) completes(wc *verbs.WC, i int) {
	s.from.t.Helper()
	if wc.Status != verbs.WCSuccess || wc.WRID != uint64(i) {
		s.from.t.Fatalf("message %d completes with %v, want %d", wc.WRID, wc.Status, i)
	}
}

// holds checks message i at its destination.
func (s *lossyStream) holds(i int) {
	s.from.t.Helper()
	off, n := s.message(i)
	if got, want := s.to.buf[off:][:n], fill(n, byte(i)); !bytes.Equal(got, want) {
		s.from.t.Fatalf("message %d is %x, want %x", i, got, want)
	}
}

// run carries this many more messages, and calls f after each delivered packet.
func (s *lossyStream) run(messages int, f func()) {
	if s.posted == 0 {
		for i := range streamSlots / 2 {
			s.to.recv(uint64(2*i), 2*i*streamSlot, streamSlot)
		}
	}
	for until := s.done + messages; s.done < until; sleep(10 * time.Microsecond) {
		for ; s.posted < until && s.posted-s.done < s.most; s.posted++ {
			s.post(s.posted)
		}
		for i, from := range []*rig{s.from, s.to} {
			to := []*rig{s.to, s.from}[i]
			for _, p := range from.take() {
				from.relay(to, &p)
				if s.rand.IntN(1000) >= s.perMille {
					s.flights[i] = append(s.flights[i], flight{time.Now().Add(100 * time.Microsecond), p})
				}
			}
			for len(s.flights[i]) > 0 && !s.flights[i][0].at.After(time.Now()) {
				to.give(s.flights[i][0].pkt)
				s.flights[i] = s.flights[i][1:]
				if to == s.to {
					f()
				}
			}
		}
		for _, wc := range poll(s.to.t, s.to.rcq) {
			s.completes(&wc, s.got)
			s.holds(s.got)
			off, _ := s.message(s.got)
			s.to.recv(uint64(s.got+streamSlots), off, streamSlot)
			s.got += 2
		}
		for _, wc := range poll(s.from.t, s.from.scq) {
			s.completes(&wc, s.done)
			if s.done%2 == 1 {
				s.holds(s.done)
			}
			s.done++
		}
	}
}

// TestForgedUnderLoss checks that everything arrives too if packets are lost and later ones kept.
// After the forger stops, packets are kept again.
func TestForgedUnderLoss(t *testing.T) {
	for _, perMille := range []int{10, 30} {
		for _, most := range []int{1, 30} {
			for _, share := range []int{1, 10} { // forged packets per packet of the peer
				if testing.Short() && (perMille != 30 || share != 10) {
					continue
				}
				c := config{size: streamSlots * streamSlot, timeout: 12, retry: 7, rnr: 7, sqPSN: 0xfff000, rqPSN: 99}
				run(t, fmt.Sprintf("%d of 1000, %d messages, %d", perMille, most, share), c, func(t *testing.T, from *rig) {
					c.sqPSN, c.rqPSN = c.rqPSN, c.sqPSN
					s := &lossyStream{from: from, to: newRig(t, c), rand: rand.New(rand.NewPCG(1, 3)), perMille: perMille, most: most}
					f := &forger{rig: s.to, rand: s.rand}
					noForger := func() {}
					s.run(amount(300, 1000, 1000), noForger)
					for f.sent < forgeries()/8 {
						s.run(100, func() { f.give(share) })
					}
					if s.to.counter("suspect_requests") == 0 {
						t.Error("no packet is suspected")
					}
					s.run(100, noForger) // the last forged packet may be detected only now
					sleep(20 * time.Second)
					kept := from.counter("selective_repeats")
					s.run(amount(300, 1000, 1000), noForger)
					if most > 1 && from.counter("selective_repeats") == kept {
						t.Error("no packets are kept any more")
					}
				})
			}
		}
	}
}

// TestContradictions checks that evidence of a forged packet drops all kept packets. The peer goes
// back, and its packets are accepted. No packets are kept for a while.
func TestContradictions(t *testing.T) {
	good, bad := fill(8, 1), fill(8, 0x66)
	message := func(r *rig, psn int, data []byte) wire.Packet { return r.req(wire.RCSendOnly, psn, data, ackReq) }
	// PSNs 0 and 1 are used. PSN 2 is lost, 3 and 5 arrive, and 4 not yet.
	for _, c := range []struct {
		name string
		pkts func(r *rig) []wire.Packet
		want []string
	}{
		{"a second copy", func(r *rig) []wire.Packet { return again(message(r, 5, good)) }, []string{"nak60 2 msn 2"}},
		{"a second copy with another opcode", func(r *rig) []wire.Packet { return again(r.req(wire.RCSendLast, 5, bad)) },
			[]string{"nak60 2 msn 2"}},
		{"a second copy of another length", func(r *rig) []wire.Packet { return again(message(r, 5, bad[:4])) }, []string{"nak60 2 msn 2"}},
		{"a second copy for another address",
			func(r *rig) []wire.Packet { return again(r.req(wire.RCWriteOnly, 3, good, r.at(4096+8, 8))) }, []string{"nak60 2 msn 2"}},
		{"the newest, before others", func(r *rig) []wire.Packet { return marked(message(r, 4, good)) }, []string{"nak60 2 msn 2"}},
		{"the newest, in order", func(r *rig) []wire.Packet { return marked(message(r, 2, good)) }, []string{"nak60 3 msn 3"}},
	} {
		run(t, c.name, config{}, func(t *testing.T, r *rig) {
			r.lossy(0)
			write := r.req(wire.RCWriteOnly, 3, good, r.at(4096, 8))
			r.give(marked(write)...)
			r.give(marked(message(r, 5, bad))...)
			if sent := r.take(); len(sent) != 1 || len(sent[0].Payload) == 0 {
				t.Fatalf("kept packets are not reported: %v", sent)
			}
			for i := range 4 {
				r.recv(uint64(i), 100*i, 8)
			}
			r.give(c.pkts(r)...)
			if sent := r.expect(c.want...); len(sent[0].Payload) != 0 {
				t.Errorf("the kept packets are %x", sent[0].Payload)
			}
			// The peer goes back.
			r.give(again(message(r, 2, good), write, message(r, 4, good))...)
			r.give(marked(message(r, 5, good))...)
			r.take()
			r.completions(r.rcq, "0 SUCCESS RECV 8", "1 SUCCESS RECV 8", "2 SUCCESS RECV 8")
			for i := range 3 {
				if got := r.buf[100*i:][:8]; !bytes.Equal(got, good) {
					t.Errorf("message %d is %x", i, got)
				}
			}
			if n := r.counter("suspect_requests"); n != 1 {
				t.Errorf("%d packets are suspected", n)
			}
			// No packets are kept for a while.
			r.lossy(6)
			r.give(marked(r.nothing(9))...)
			r.keepsNothing()
			r.give(again(r.nothing(8), r.nothing(9))...)
			r.take()
			sleep(11 * time.Second)
			r.lossy(10)
			r.give(marked(r.nothing(13))...)
			if sent := r.take(); len(sent) != 1 || len(sent[0].Payload) == 0 {
				t.Errorf("a while later the answer is %v", sent)
			}
		})
	}
	// A forged packet in error does not end the connection, unless it has the expected PSN.
	for _, peers := range []bool{false, true} {
		run(t, fmt.Sprint("in error, from the peer: ", peers), config{}, func(t *testing.T, r *rig) {
			r.lossy(0)
			r.recv(0, 0, 8)
			r.recv(1, 100, 8)
			r.give(marked(r.req(wire.RCSendFirst, 3, fill(1024, 0x66)))...)
			r.give(marked(r.req(wire.RCSendOnly, 4, good))...)
			r.take()
			second := message(r, 2, good)
			second.AckReq = false
			r.give(again(second)...)
			r.expect("nak60 3 msn 3")
			r.state(verbs.StateRTS)
			if peers {
				r.give(again(r.req(wire.RCSendFirst, 3, fill(1024, 0x66)))...)
				r.expect("nak61 3 msn 3")
				r.state(verbs.StateErr)
				r.completions(r.rcq, "0 SUCCESS RECV 8", "1 LOC_LEN_ERR")
				return
			}
			r.give(again(r.req(wire.RCSendOnly, 3, good, ackReq))...)
			r.expect("ack 3 msn 4")
			r.completions(r.rcq, "0 SUCCESS RECV 8", "1 SUCCESS RECV 8")
			r.state(verbs.StateRTS)
		})
	}
	// The NAK does not replace the acknowledgement of earlier packets. The peer may have nothing
	// more to send.
	run(t, "in error, after the last", config{}, func(t *testing.T, r *rig) {
		r.lossy(0)
		r.give(marked(r.req(wire.RCSendMiddle, 3, bad))...)
		r.give(again(r.nothing(2))...)
		r.expect("ack 2 msn 3")
		r.give(marked(r.nothing(3))...)
		r.expect("ack 3 msn 4")
	})
	// Fields that may differ in a retransmission are no contradiction.
	run(t, "an equal copy", config{}, func(t *testing.T, r *rig) {
		r.lossy(0)
		p := r.req(wire.RCWriteOnly, 3, good, r.at(0, 8))
		r.give(marked(p)...)
		p.AckReq, p.FECN, p.Reserved6 = true, true, 5
		r.give(again(p)...)
		r.expect("nak60 2 msn 2")
		r.give(again(r.nothing(2))...)
		r.expect("ack 3 msn 4")
		if n := r.counter("suspect_requests"); n != 0 {
			t.Errorf("%d packets are suspected", n)
		}
	})
}

// TestKeepTimeout checks that kept packets are dropped if the missing packet does not arrive within
// a second. A peer with a report of them gets a NAK. The next gap is then a first loss.
func TestKeepTimeout(t *testing.T) {
	bubble(t, config{timeout: 14}, func(r *rig) {
		r.lossy(0)
		kept := r.req(wire.RCWriteOnly, 3, fill(8, 0x66), r.at(0, 8), ackReq)
		r.give(marked(kept)...)
		r.take()
		sleep(900 * time.Millisecond)
		r.expect()
		sleep(time.Second)
		if p := r.expect("nak60 2 msn 2")[0]; len(p.Payload) != 0 {
			t.Errorf("the kept packets are %x", p.Payload)
		}
		want := bytes.Clone(r.buf)
		r.give(again(r.nothing(2))...)
		r.expect("ack 2 msn 3")
		if !bytes.Equal(r.buf, want) {
			t.Error("it was kept")
		}
	})
	// Packets are kept as long as gaps are being filled.
	bubble(t, config{}, func(r *rig) {
		r.lossy(0)
		for psn := 3; psn < 12; psn += 2 {
			r.give(marked(r.nothing(psn))...)
		}
		for psn := 2; psn < 12; psn += 2 {
			r.take()
			sleep(700 * time.Millisecond)
			r.give(again(r.nothing(psn))...)
		}
		r.expect("ack 11 msn 12")
	})
}

// TestUnmarkedDropped checks that a peer that has marked one packet must mark all.
func TestUnmarkedDropped(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		r.give(r.nothing(0)) // unmarked
		r.expect("ack 0 msn 1")
		r.give(marked(r.nothing(1))...)
		r.expect("ack 1 msn 2")
		other := marked(r.nothing(2))[0]
		for other.Reserved7 == marked(r.nothing(2))[0].Reserved7 || other.Reserved7 == again(r.nothing(2))[0].Reserved7 {
			other.Reserved7 = other.Reserved7%127 + 1
		}
		r.give(r.nothing(2), other, r.nothing(3), r.nothing(0), r.req(wire.RCReadRequest, 2, nil, reth(0, 0, 8)))
		r.expect()
		if n := r.counter("suspect_requests"); n != 5 {
			t.Errorf("%d packets are suspected", n)
		}
		r.give(marked(r.nothing(2))...)
		r.expect("ack 2 msn 3")
		r.state(verbs.StateRTS)
	})
}

// TestReadTakesPSNs checks that packets with the PSNs of a READ's responses are dropped, and do not
// affect later ones.
func TestReadTakesPSNs(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		r.lossy(0)
		want := bytes.Clone(r.buf)
		r.give(marked(r.req(wire.RCWriteOnly, 6, fill(8, 1), r.at(0, 8), ackReq), r.nothing(8))...)
		r.give(again(r.req(wire.RCWriteOnly, 3, fill(8, 0x66), r.at(100, 8)), r.req(wire.RCWriteOnly, 5, fill(8, 0x66), r.at(100, 8)))...)
		r.take()
		r.give(again(r.req(wire.RCReadRequest, 2, nil, r.at(4096, 4*1024)))...)
		sent := r.take()
		if len(sent) != 5 || r.brief(&sent[4]) != "nak60 7 msn 4" {
			t.Fatalf("%d answers, %v", len(sent), sent)
		}
		if got := sacktest.Distances(sent[4].Payload); !slices.Equal(got, []uint32{1}) {
			t.Errorf("it reports %v", got)
		}
		r.give(again(r.nothing(7))...)
		r.expect("ack 8 msn 6")
		copy(want, fill(8, 1))
		if !bytes.Equal(r.buf, want) {
			t.Error("the data are wrong")
		}
		// The same, a whole span of the store later.
		for psn := 9; psn < 9+2*int(receive.Span(send.DefaultWindow, 1024)); psn++ {
			r.give(marked(r.nothing(psn))...)
		}
		r.keepsNothing()
	})
}

// TestStoresBounded checks that a device keeps packets for 64 QPs at a time, and that the peers of
// others go back.
func TestStoresBounded(t *testing.T) {
	const stores = 64
	bubble(t, config{maxWR: 1}, func(r *rig) {
		qps := []*verbs.QP{r.qp}
		for range stores {
			r.createQP()
			rigs.Store(r.qp.Num(), r)
			r.connect()
			qps = append(qps, r.qp)
		}
		gap := func(i, psn int) (kept bool) {
			r.qp = qps[i]
			r.give(marked(r.nothing(psn + 1))...)
			sent := r.take()
			if len(sent) != 1 || sent[0].AETH.Syndrome != wire.NakPSNSeq {
				t.Fatalf("QP %d answers a gap with %v", i, sent)
			}
			return len(sent[0].Payload) != 0
		}
		for i := range qps {
			r.qp = qps[i]
			r.lossy(0)
			if kept := gap(i, 2); kept != (i < stores) {
				t.Errorf("QP %d keeps packets after a gap: %v", i, kept)
			}
		}
		r.qp = qps[0]
		r.give(again(r.nothing(2))...) // filled
		r.expect("ack 3 msn 4")
		r.qp = qps[stores]
		r.give(again(r.nothing(2), r.nothing(3))...)
		r.take()
		if !gap(stores, 4) {
			t.Error("a free store is not used again")
		}
		for _, r.qp = range qps[1:] {
			rigs.Delete(r.qp.Num())
			if err := r.qp.Close(); err != nil {
				t.Fatal(err)
			}
		}
		r.qp = qps[0]
	})
}

// TestNotReadyIsNoLoss checks that a retransmission because of a missing receive request does not
// count as a loss.
func TestNotReadyIsNoLoss(t *testing.T) {
	send := func(r *rig, psn int) wire.Packet { return r.req(wire.RCSendOnly, psn, fill(8, 1), ackReq) }
	plain := func(r *rig, want ...string) {
		r.t.Helper()
		for _, p := range r.expect(want...) {
			if len(p.Payload) != 0 {
				r.t.Errorf("the kept packets are %x", p.Payload)
			}
		}
	}
	run(t, "no loss", config{}, func(t *testing.T, r *rig) {
		r.give(marked(send(r, 0), r.nothing(1), r.nothing(2))...)
		r.expect("rnr12 0 msn 0")
		r.recv(0, 0, 8)
		r.give(again(send(r, 0), r.nothing(1))...)
		r.take()
		r.give(marked(r.nothing(2), r.nothing(4))...)
		plain(r, "ack 2 msn 3", "nak60 3 msn 3")
	})
	run(t, "earlier losses", config{}, func(t *testing.T, r *rig) {
		r.lossy(0)
		r.give(marked(send(r, 2))...)
		r.give(marked(r.nothing(3), r.nothing(4))...)
		plain(r, "rnr12 2 msn 2")
	})
	// It seems to be retransmitted because of later packets, which may be forged.
	run(t, "its retransmission seems to be lost", config{}, func(t *testing.T, r *rig) {
		r.give(marked(send(r, 0), r.nothing(1), r.nothing(2), r.nothing(3))...)
		r.expect("rnr12 0 msn 0")
		r.give(again(r.nothing(1))...)
		r.expect("nak60 0 msn 0")
		r.recv(0, 0, 8)
		r.give(again(send(r, 0), r.nothing(1), r.nothing(2))...)
		r.take()
		r.give(marked(r.nothing(3), r.nothing(5))...)
		plain(r, "ack 3 msn 4", "nak60 4 msn 4")
	})
}

// TestForgedGap checks that a forged packet with a later PSN does not make the peer's packets
// before it count as lost.
func TestForgedGap(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		send := r.req(wire.RCSendOnly, 0, fill(8, 1), ackReq)
		r.give(marked(r.nothing(3))...) // forged
		r.give(marked(send, r.nothing(1))...)
		r.expect("nak60 0 msn 0", "rnr12 0 msn 0")
		sleep(11 * time.Second)
		r.recv(0, 0, 8)
		r.give(again(send)...)
		r.give(marked(r.nothing(1), r.nothing(3))...)
		for _, p := range r.expect("ack 0 msn 1", "ack 1 msn 2", "nak60 2 msn 2") {
			if len(p.Payload) != 0 {
				t.Errorf("the kept packets are %x", p.Payload)
			}
		}
	})
}

// TestFirstLossTwice checks the loss of the NAK or of the retransmission while no packets are kept.
// A probe of the peer detects it.
func TestFirstLossTwice(t *testing.T) {
	run(t, "responder", config{}, func(t *testing.T, r *rig) {
		r.give(marked(r.nothing(1))...)
		r.expect("nak60 0 msn 0")
		silent := r.nothing(2)
		silent.AckReq = false
		r.give(marked(silent)...)
		r.expect()
		r.give(marked(r.nothing(2))...)
		r.expect("nak60 0 msn 0")
	})
	run(t, "requester", config{sqPSN: first, retry: 7, timeout: 19}, func(t *testing.T, r *rig) {
		sleep(time.Microsecond)
		r.post(r.wr(1, verbs.Send, 8))
		sleep(100 * time.Microsecond)
		r.give(marked(r.ack(0))...)
		r.post(r.wr(2, verbs.RDMAWrite, 2*1024), r.wr(3, verbs.Send, 8))
		r.take()
		r.give(marked(r.nak(wire.NakPSNSeq, 1))...)
		r.expect("WRITE First 1 len 1024 at 0+2048", "WRITE Last 2 len 1024 ackreq", "SEND Only 3 len 8 ackreq")
		r.give(marked(r.nak(wire.NakPSNSeq, 1))...)
		r.expect()
		sleep(30 * time.Millisecond) // the timeout is 2 s
		if sent := r.take(); len(sent) == 0 || sent[0].PSN != wire.PSNAdd(first, 3) {
			t.Fatalf("the probe is %v", sent)
		}
		r.give(marked(r.nak(wire.NakPSNSeq, 1))...)
		r.expect("WRITE First 1 len 1024 at 0+2048", "WRITE Last 2 len 1024 ackreq", "SEND Only 3 len 8 ackreq")
	})
	run(t, "reported by a third party", config{sqPSN: first, retry: 7}, func(t *testing.T, r *rig) {
		r.post(r.wr(2, verbs.RDMAWrite, 4*1024))
		r.take()
		p := r.sack(0, 1, 2, 3)
		p.Reserved7 = p.Reserved7%127 + 1
		r.give(p)
		r.expect()
		if n := r.counter("malformed_packets"); n != 1 {
			t.Errorf("%d malformed packets", n)
		}
	})
}
