package rocetransport_test

// Packets from a stack that does not see IP headers, with a guessed IPv4 identification.

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// unseen returns a frame of one packet, with an identification that the stack has not seen.
func (r *rig) unseen(p wire.Packet, id uint16) *stack.Datagram {
	d := &stack.Datagram{Src: r.them, Dst: r.us, SrcPort: 50000, SegmentSize: p.Size(), IDGuessed: true, Payload: make([]byte, p.Size())}
	d.Header = make([]byte, headerLen(r.us))
	putHeader(d.Header, d.Src, d.Dst, d.SrcPort, int(id), p.Size())
	p.Encode(d.Header, d.Payload)
	binary.BigEndian.PutUint16(d.Header[4:], 0)
	return d
}

// giveUnseen passes a WRITE with an identification to the engine, and reports whether it was
// refused.
func (r *rig) giveUnseen(psn int, id uint16) (refused bool) {
	before := r.counter("icrc_errors")
	r.port.receive(r.unseen(r.req(wire.RCWriteOnly, psn, make([]byte, 64), r.at(0, 64)), id))
	r.take()
	return r.counter("icrc_errors") != before
}

func TestUnseenIdentification(t *testing.T) {
	type event struct {
		psn     int
		id      uint16
		refused bool
	}
	const ahead = 100 // of the expected PSN: not executed
	for _, c := range []struct {
		name   string
		strict bool
		solved uint64
		events []event
	}{
		{"guessed right", false, 0, []event{{0, 0, false}, {1, 0, false}, {2, 0, false}}},
		{"a counter", false, 3, []event{{0, 0xfffe, false}, {1, 0xffff, false}, {2, 0, false}, {3, 1, false}}},
		{"far away from the last", false, 1, []event{{0, 1000, false}, {1, 30000, true}, {1, 0, false}}},
		{"a jump", false, 3, []event{{0, 1000, false}, {1, 30000, true}, {1, 30001, false}, {2, 30002, false}, {3, 1001, true}}},
		{"a packet with a wrong PSN is recorded, but does not advance the identification", false, 4,
			[]event{{0, 1000, false}, {ahead, 1200, false}, {ahead, 1400, false}, {ahead, 1700, true}, {1, 1001, false}}},
		{"a packet with a wrong PSN is no first packet", false, 2, []event{{ahead, 30000, false}, {0, 1000, false}}},
		{"a duplicate does not advance the identification", false, 4,
			[]event{{0, 1000, false}, {0, 1200, false}, {0, 1400, false}, {0, 1700, true}, {1, 1001, false}}},
		{"strict", true, 0, []event{{0, 1000, true}, {0, 64, true}, {0, 63, false}, {1, 0, false}}},
	} {
		run(t, c.name, config{goBackN: true, strictICRC: c.strict}, func(t *testing.T, r *rig) {
			for i, e := range c.events {
				if refused := r.giveUnseen(e.psn, e.id); refused != e.refused {
					t.Fatalf("packet %d, PSN %d, ID %d: refused %t, want %t", i, e.psn, e.id, refused, e.refused)
				}
			}
			if n := r.counter("icrc_id_solved"); n != c.solved {
				t.Errorf("%d identifications were solved, want %d", n, c.solved)
			}
		})
	}
}

// TestGRO checks packets that the kernel has merged (GRO): single ones with identification 0, and
// parts of superframes. None is refused.
func TestGRO(t *testing.T) {
	for _, strict := range []bool{false, true} {
		for _, c := range []struct {
			name string
			ids  []uint16
		}{
			{"singly", []uint16{0, 0, 0, 0}},
			{"a superframe", []uint16{0, 1, 2, 3}},
			{"its end", []uint16{60, 61, 62, 63}},
			{"two superframes", []uint16{2, 3, 0, 1}},
		} {
			run(t, fmt.Sprintf("%s, strict %t", c.name, strict), config{strictICRC: strict}, func(t *testing.T, r *rig) {
				var d *stack.Datagram
				for i, id := range c.ids {
					one := r.unseen(r.req(wire.RCWriteOnly, i, make([]byte, 64), r.at(0, 64)), id)
					if d == nil {
						d = one
					} else {
						d.Payload = append(d.Payload, one.Payload...)
					}
				}
				stack.PutLengths(d.Header, len(d.Payload))
				r.port.receive(d)
				if n := r.counter("icrc_errors"); n != 0 {
					t.Errorf("%d of %d were refused", n, len(c.ids))
				}
				r.take()
			})
		}
	}
}

// TestBetweenUnreliable checks a peer that also counts packets to QPs of other types. The
// occasional packets of a reliable connection are accepted in between.
func TestBetweenUnreliable(t *testing.T) {
	bubble(t, config{goBackN: true}, func(r *rig) {
		reliable := r.qp
		r.c.service = verbs.UC
		r.createQP()
		r.connect()
		other := r.qp
		id := uint16(60000)
		for psn := range 20 {
			r.qp = reliable
			if id++; r.giveUnseen(psn, id) {
				t.Fatalf("PSN %d, ID %d, was refused", psn, id)
			}
			r.qp = other
			for i := range 1000 {
				id++
				d := r.unseen(r.req(wire.UCWriteOnly, 1000*psn+i, make([]byte, 64), r.at(0, 64)), id)
				d.SrcPort++
				r.port.receive(d)
			}
		}
		if err := other.Close(); err != nil {
			t.Error(err)
		}
		r.qp = reliable
	})
}

// TestBetweenRetransmissions checks a peer under heavy loss. It retransmits thousands of packets
// before it sends the next one, or sends packets after a gap. None is refused.
func TestBetweenRetransmissions(t *testing.T) {
	for name, psn := range map[string]int{"duplicates": 0, "after a gap": 50} {
		run(t, name, config{goBackN: true}, func(t *testing.T, r *rig) {
			id := uint16(60000)
			r.giveUnseen(0, id)
			for range 6_000 {
				if id++; r.giveUnseen(psn, id) {
					t.Fatalf("ID %d was refused", id)
				}
			}
			if r.giveUnseen(1, id+1) {
				t.Errorf("the next packet, ID %d, was refused", id+1)
			}
		})
	}
}

// TestUnseenResponses checks that responses advance the last identification too.
func TestUnseenResponses(t *testing.T) {
	bubble(t, config{goBackN: true}, func(r *rig) {
		for i := range 20 {
			r.post(r.wr(uint64(i), verbs.RDMAWrite, 64))
			r.take()
			r.port.receive(r.unseen(r.ack(i), uint16(1000+200*i)))
		}
		if n := r.counter("icrc_errors"); n != 0 {
			t.Errorf("%d of 20 acknowledgements were refused", n)
		}
	})
}

// TestUnseenDamage checks a peer that counts. Hardly any damaged packet is accepted, and none
// advances the expected PSN.
func TestUnseenDamage(t *testing.T) {
	bubble(t, config{goBackN: true}, func(r *rig) {
		rnd := rand.New(rand.NewPCG(3, 4))
		psn, id := 0, uint16(40000)
		for range forgeries() {
			d := r.unseen(r.req(wire.RCWriteOnly, psn, make([]byte, 64), r.at(0, 64)), id)
			for range 1 + rnd.IntN(4) {
				// Payload and ICRC.
				d.Payload[len(d.Payload)-1-rnd.IntN(68)] ^= byte(1 + rnd.IntN(255))
			}
			r.port.receive(d)
			if rnd.IntN(64) == 0 {
				if id++; r.giveUnseen(psn, id) {
					t.Fatalf("PSN %d, ID %d of the peer was refused", psn, id)
				}
				psn++
			}
		}
		if psn < 100 {
			t.Fatalf("only %d packets of the peer", psn)
		}
	})
}

// TestForgedIdentifications checks that packets with a valid ICRC, any identification and a wrong
// PSN do not close the window for the peer.
func TestForgedIdentifications(t *testing.T) {
	bubble(t, config{goBackN: true}, func(r *rig) {
		rnd := rand.New(rand.NewPCG(5, 6))
		psn, id := 0, uint16(rnd.Uint32())
		if r.giveUnseen(psn, id) {
			t.Fatal("the first packet was refused")
		}
		for range forgeries() {
			r.port.receive(r.unseen(r.req(wire.RCWriteOnly, psn+2+rnd.IntN(1000), make([]byte, 64), r.at(0, 64)), uint16(rnd.Uint32())))
			if rnd.IntN(64) == 0 {
				psn++
				if id += uint16(1 + rnd.IntN(100)); r.giveUnseen(psn, id) {
					t.Fatalf("PSN %d, ID %d of the peer was refused", psn, id)
				}
			}
		}
		r.take()
	})
}
