package rocetransport_test

// Packets that a switch has cut to their headers, on both sides.

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

const trimmedDSCP = 10

// trimmed returns what a switch leaves of a packet: n bytes of its UDP payload.
func (r *rig) trimmed(p wire.Packet, n int) *stack.Datagram {
	d := r.frame(p)
	d.TrafficClass = trimmedDSCP<<2 | 2
	d.Payload, d.SegmentSize, d.Truncated = d.Payload[:n:n], n, true
	return d
}

// giveTrimmed passes packets to the engine that a switch has trimmed.
func (r *rig) giveTrimmed(pkts ...wire.Packet) {
	for i := range pkts {
		r.port.receive(r.trimmed(pkts[i], wire.BTHLen+16))
	}
}

// expectTrimmed checks that a sequence NAK of PSN psn says that the packet at a distance was
// trimmed.
func (r *rig) expectTrimmed(psn, distance int) {
	r.t.Helper()
	p := r.expect(fmt.Sprintf("nak60 %d msn %d", psn, psn))[0]
	if n, is := wire.Sack(p.Payload).Trimmed(); !is || n != uint32(distance) {
		r.t.Fatalf("the list is %x", p.Payload)
	}
}

// write returns the peer's request psn: a WRITE of a packet.
func (r *rig) write(psn int) wire.Packet {
	return r.req(wire.RCWriteOnly, psn, fill(1024, byte(psn)), r.at(1024*psn, 1024), ackReq)
}

// TestTrimmedRequest: a responder that keeps packets says at once which one was trimmed, before and
// after a gap, and again if the retransmission is trimmed too. Nothing else changes.
func TestTrimmedRequest(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		bubble(t, config{trimmedDSCP: trimmedDSCP, rqPSN: 0xfffffd, v6: v6}, func(r *rig) {
			w := func(psn int) wire.Packet { return marked(r.write(psn))[0] }
			r.giveTrimmed(w(0))
			r.expectTrimmed(0, 0)
			r.give(again(r.write(0))...)
			r.expect("ack 0 msn 1")
			r.giveTrimmed(w(3)) // it overtakes 1 and 2
			r.expectTrimmed(1, 2)
			r.give(w(1), w(2))
			r.expect("ack 1 msn 2", "ack 2 msn 3")
			r.giveTrimmed(again(r.write(3))...)
			r.expectTrimmed(3, 0)
			r.give(again(r.write(3))...)
			r.expect("ack 3 msn 4")
			r.giveTrimmed(w(2)) // a probe for an acknowledgement that was lost
			r.expect("ack 3 msn 4")
			for i := range 4 {
				if !bytes.Equal(r.buf[1024*i:1024*i+1024], fill(1024, byte(i))) {
					t.Errorf("packet %d is wrong", i)
				}
			}
			if a, b := r.counter("trimmed_packets"), r.counter("out_of_seq_request"); a != 4 || b != 0 {
				t.Errorf("%d are trimmed, and %d gaps", a, b)
			}
		})
	}
	run(t, "with packets kept", config{trimmedDSCP: trimmedDSCP}, func(t *testing.T, r *rig) {
		r.lossy(0)
		w := func(psn int) wire.Packet { return marked(r.write(psn))[0] }
		r.give(w(4))
		r.expect("nak60 2 msn 2")
		r.giveTrimmed(again(r.write(3))...) // 2 is missing too
		r.expectTrimmed(2, 1)
		r.give(again(r.write(2))...)
		r.expect("nak60 3 msn 3") // which reports 4
		r.give(again(r.write(3))...)
		r.expect("ack 4 msn 5")
	})
}

// TestTrimmedGoBack: to a peer that goes back, a NAK is due once, when the trimmed packet is the
// expected one: earlier packets may be on their way.
func TestTrimmedGoBack(t *testing.T) {
	bubble(t, config{trimmedDSCP: trimmedDSCP, goBackN: true}, func(r *rig) {
		r.giveTrimmed(r.write(0), r.write(1), r.write(0))
		if p := r.expect("nak60 0 msn 0"); len(p[0].Payload) != 0 {
			t.Errorf("the list %x", p[0].Payload)
		}
		r.give(r.write(0), r.write(1))
		r.expect("ack 0 msn 1", "ack 1 msn 2")
		r.giveTrimmed(r.write(5), r.write(4))
		r.expect()
		r.give(r.write(2))
		r.expect("ack 2 msn 3")
		r.give(r.write(3))
		r.expect("nak60 4 msn 4")
		r.giveTrimmed(r.write(4))
		r.expect()
		r.give(r.write(4), r.write(5), r.write(6))
		r.expect("ack 4 msn 5", "ack 5 msn 6", "ack 6 msn 7")
		r.giveTrimmed(r.write(8)) // and it arrives whole, before the one before
		r.give(r.write(8), r.write(7), r.write(8))
		r.expect("nak60 7 msn 7", "nak60 8 msn 8", "ack 8 msn 9")
	})
}

// TestTrimmedHints: what is wrong about a trimmed packet, or what anyone may forge, changes
// nothing, and is not answered.
func TestTrimmedHints(t *testing.T) {
	span := int(receive.Span(send.DefaultWindow, 1024))
	for _, c := range []struct {
		name   string
		off    bool
		change func(p *wire.Packet)
		as     func(d *stack.Datagram)
	}{
		{name: "off", off: true},
		{name: "another QP", change: func(p *wire.Packet) { p.DestQP ^= 1 }},
		{name: "QP 1", change: func(p *wire.Packet) { p.DestQP = 1 }},
		{name: "beyond the span", change: func(p *wire.Packet) { p.PSN += uint32(span) }},
		{name: "long ago", change: func(p *wire.Packet) { p.PSN = wire.PSNAdd(p.PSN, 1<<24-uint32(span)-3) }},
		{name: "half the PSNs away", change: func(p *wire.Packet) { p.PSN += 1 << 23 }},
		{name: "without a mark", change: func(p *wire.Packet) { p.Reserved7 = 0 }},
		{name: "a wrong mark", change: func(p *wire.Packet) { p.Reserved7 = p.Reserved7%127 + 1 }},
		{name: "P_Key", change: func(p *wire.Packet) { p.PKey = 0x8001 }},
		{name: "an acknowledgement", change: func(p *wire.Packet) { p.Opcode = wire.RCAck }},
		{name: "an atomic", change: func(p *wire.Packet) { p.Opcode = wire.RCFetchAdd }},
		{name: "a READ", change: func(p *wire.Packet) { p.Opcode = wire.RCReadRequest }},
		{name: "a READ response", change: func(p *wire.Packet) { p.Opcode = wire.RCReadResponseMiddle }},
		{name: "UC", change: func(p *wire.Packet) { p.Opcode = wire.UCWriteOnly }},
		{name: "XRC", change: func(p *wire.Packet) { p.Opcode = wire.RCWriteOnly | wire.Opcode(wire.XRC)<<5 }},
		{name: "UD", change: func(p *wire.Packet) { p.Opcode = wire.UDSendOnly }},
		{name: "CNP", change: func(p *wire.Packet) { p.Opcode, p.Payload = wire.CNP, make([]byte, 16) }},
		{name: "another source", as: func(d *stack.Datagram) { d.Src = netip.MustParseAddr("10.0.0.3") }},
		{name: "another destination", as: func(d *stack.Datagram) { d.Dst = netip.MustParseAddr("10.0.0.3") }},
		{name: "another process", as: func(d *stack.Datagram) { d.SrcQPNs = stack.Range{Base: 1 << 23, Mask: 1<<23 - 1} }},
		{name: "another DSCP", as: func(d *stack.Datagram) { d.TrafficClass = 26 << 2 }},
		{name: "RoCE v1", as: func(d *stack.Datagram) { d.V1 = true }},
		{name: "in memory", as: func(d *stack.Datagram) { d.NoICRC = true }},
		{name: "version", as: func(d *stack.Datagram) { d.Payload[1] |= 1 }},
		{name: "opcode", as: func(d *stack.Datagram) { d.Payload[0] = 0x1f }},
		{name: "short", as: func(d *stack.Datagram) { d.Payload, d.SegmentSize = d.Payload[:11], 11 }},
		{name: "a byte", as: func(d *stack.Datagram) { d.Payload, d.SegmentSize = d.Payload[:1], 1 }},
	} {
		cfg := config{trimmedDSCP: trimmedDSCP, rqPSN: 1}
		if c.off {
			cfg.trimmedDSCP = 0
		}
		run(t, c.name, cfg, func(t *testing.T, r *rig) {
			r.lossy(0) // so the peer has shown that it marks its packets
			was := bytes.Clone(r.buf)
			p := marked(r.write(2))[0]
			if c.change != nil {
				c.change(&p)
			}
			d := r.trimmed(p, wire.BTHLen+8)
			if c.as != nil {
				c.as(d)
			}
			r.port.receive(d)
			r.expect()
			if n := r.counter("trimmed_packets"); n != 0 || !bytes.Equal(was, r.buf) {
				t.Errorf("%d hints, memory has changed: %t", n, !bytes.Equal(was, r.buf))
			}
			r.give(marked(r.write(2))...)
			r.expect("ack 2 msn 3")
		})
	}
	run(t, "many", config{trimmedDSCP: trimmedDSCP}, func(t *testing.T, r *rig) {
		flood := func() int {
			for range 3 * span {
				r.giveTrimmed(marked(r.write(1))...)
			}
			return len(r.take())
		}
		if n := flood(); n != span {
			t.Errorf("%d answers at once, want %d", n, span)
		}
		if sleep(time.Millisecond); flood() != span {
			t.Error("there are no answers later")
		}
		r.give(marked(r.write(0))...)
		r.expect("ack 0 msn 1")
	})
	run(t, "not connected", config{trimmedDSCP: trimmedDSCP, stopAt: verbs.StateInit}, func(t *testing.T, r *rig) {
		r.giveTrimmed(marked(r.write(0))...)
		r.expect()
	})
	run(t, "after an RNR NAK", config{trimmedDSCP: trimmedDSCP}, func(t *testing.T, r *rig) {
		r.give(marked(r.req(wire.RCSendOnly, 0, fill(8, 1)))...)
		r.expect("rnr12 0 msn 0")
		r.giveTrimmed(marked(r.req(wire.RCSendOnly, 0, fill(1024, 1)), r.write(1))...)
		r.expect()
	})
}

// TestTrimmedLengths: a switch that sets the lengths of what it trims leaves a wrong ICRC. A packet
// that is whole is as any other, whatever its DSCP.
func TestTrimmedLengths(t *testing.T) {
	bubble(t, config{trimmedDSCP: trimmedDSCP}, func(r *rig) {
		for _, n := range []int{wire.BTHLen + 16, wire.BTHLen + 17, wire.BTHLen + 20, wire.BTHLen} {
			d := r.trimmed(marked(r.write(0))[0], n)
			d.Truncated = false
			putHeader(d.Header, d.Src, d.Dst, d.SrcPort, 0, n)
			r.port.receive(d)
			r.expectTrimmed(0, 0)
		}
		if n := r.counter("icrc_errors") + r.counter("malformed_packets"); n != 0 {
			t.Errorf("%d errors", n)
		}
		d := r.frame(marked(r.write(0))[0])
		d.TrafficClass = trimmedDSCP << 2
		r.port.receive(d)
		r.expect("ack 0 msn 1")
		// Where the stack does not see the identification, it is not solved for such a packet: that would
		// find one for what is left of it too often.
		guessed := r.trimmed(marked(r.write(1))[0], wire.BTHLen+16)
		guessed.Truncated, guessed.IDGuessed = false, true
		putHeader(guessed.Header, guessed.Src, guessed.Dst, guessed.SrcPort, 0, wire.BTHLen+16)
		r.port.receive(guessed)
		r.expectTrimmed(1, 0)
		if n := r.counter("icrc_id_solved"); n != 0 {
			t.Errorf("%d identifications are solved", n)
		}
		wrong := r.frame(marked(r.write(1))[0])
		wrong.Payload[100]++
		r.port.receive(wrong)
		r.expect()
		if n := r.counter("icrc_errors"); n != 1 {
			t.Errorf("%d errors", n)
		}
	})
}

// TestTrimmedReport: a requester repeats what the peer says is trimmed, at once, and nothing else.
func TestTrimmedReport(t *testing.T) {
	bubble(t, config{sqPSN: 0xfffffe, retry: 7, timeout: 14}, func(r *rig) {
		says := func(psn, distance int) {
			p := marked(r.nak(wire.NakPSNSeq, psn))[0]
			p.Payload = wire.AppendTrimmed(nil, uint32(distance))
			r.give(p)
		}
		r.post(r.wr(1, verbs.RDMAWrite, 6*1024))
		r.take()
		says(0, 2)
		r.expect("WRITE Middle 2 len 1024 ackreq")
		says(0, 0)
		r.expect("WRITE First 0 len 1024 at 0+6144 ackreq")
		says(0, 2)
		r.expect("WRITE Middle 2 len 1024 ackreq")
		for _, at := range []int{6, 1000, 20000, wire.MaxSackPackets} { // not in flight
			says(0, at)
		}
		says(6, 0)
		r.expect()
		says(0, 5)
		r.expect("WRITE Last 5 len 1024 ackreq")
		r.give(marked(r.ack(5))...)
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
		if a, b := r.counter("tail_probes"), r.counter("completer_retry_err"); a+b != 0 {
			t.Errorf("%d probes, %d times from a packet on", a, b)
		}
	})
}

// TestTrimmedResponse: a requester asks at once for a READ response that was trimmed.
func TestTrimmedResponse(t *testing.T) {
	opcodes := []wire.Opcode{wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseMiddle, wire.RCReadResponseMiddle,
		wire.RCReadResponseLast}
	for _, goBack := range []bool{false, true} {
		run(t, fmt.Sprint("go back ", goBack), config{trimmedDSCP: trimmedDSCP, goBackN: goBack, retry: 7, timeout: 14, dcqcn: &roce.DCQCN{}},
			func(t *testing.T, r *rig) {
				packet := func(psn int) wire.Packet { return marked(r.data(opcodes[psn], psn, fill(1024, byte(psn))))[0] }
				r.post(r.wr(1, verbs.RDMARead, 5*1024))
				r.expect("READ Request 0 at 0+5120 ackreq")
				if goBack {
					r.giveTrimmed(packet(1)) // the first may be on its way
					r.expect()
					r.giveTrimmed(packet(0), packet(0))
					asks(t, r, "READ Request 0 at 0+5120 ackreq")
					r.give(packet(0), packet(1), packet(2), packet(3), packet(4))
				} else {
					r.giveTrimmed(packet(2))
					asks(t, r, "READ Request 2 at 2048+1024 ackreq")
					r.give(packet(0), packet(1), packet(3))
					r.giveTrimmed(packet(2), packet(1), packet(4))
					asks(t, r, "READ Request 2 at 2048+1024 ackreq", "READ Request 4 at 4096+1024 ackreq")
					r.give(packet(2), packet(4))
				}
				r.completions(r.scq, "1 SUCCESS RDMA_READ 5120")
				for i := range opcodes {
					if !bytes.Equal(r.buf[1024*i:1024*i+1024], fill(1024, byte(i))) {
						t.Errorf("packet %d is wrong", i)
					}
				}
				r.giveTrimmed(packet(4))
				r.expect()
				if n := r.counter("np_cnp_sent"); n != 1 {
					t.Errorf("%d CNPs", n)
				}
			})
	}
	run(t, "none to ask for", config{trimmedDSCP: trimmedDSCP, retry: 7, timeout: 14}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 2*1024), r.wr(2, verbs.AtomicFetchAndAdd, 8), r.wr(3, verbs.RDMARead, 1024))
		r.take()
		read := func(psn int, change func(p *wire.Packet)) wire.Packet {
			p := marked(r.data(wire.RCReadResponseOnly, psn, fill(1024, 1)))[0]
			change(&p)
			return p
		}
		same := func(*wire.Packet) {}
		r.giveTrimmed(read(0, same), read(2, same), read(4, same), read(3, func(p *wire.Packet) { p.DestQP ^= 1 }),
			read(-1, same), read(1<<23, same))
		r.expect()
		r.give(marked(r.ack(1), r.atomicAck(2, 1), read(3, same))...)
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0", "2 SUCCESS FETCH_ADD 8", "3 SUCCESS RDMA_READ 1024")
	})
	// The last retry is not for what anyone may forge.
	run(t, "without retries", config{trimmedDSCP: trimmedDSCP, goBackN: true, timeout: 14}, func(t *testing.T, r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 1024))
		r.take()
		p := r.data(wire.RCReadResponseOnly, 0, fill(1024, 1))
		r.giveTrimmed(p)
		r.expect()
		r.give(p)
		r.completions(r.scq, "1 SUCCESS RDMA_READ 1024")
	})
}

// asks checks the requests that the engine has sent, beside CNPs.
func asks(t *testing.T, r *rig, want ...string) {
	t.Helper()
	sleep(10 * time.Microsecond) // by the rate
	var got []string
	for _, p := range r.take() {
		if p.Opcode != wire.CNP {
			got = append(got, r.brief(&p))
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the engine sent %s, want %s", strings.Join(got, ", "), strings.Join(want, ", "))
	}
}

// TestTrimmedMark: a trimmed packet counts as one that a switch has marked.
func TestTrimmedMark(t *testing.T) {
	bubble(t, config{trimmedDSCP: trimmedDSCP, dcqcn: &roce.DCQCN{}}, func(r *rig) {
		r.giveTrimmed(marked(r.write(0), r.write(1))...)
		var got []wire.Opcode
		for _, p := range r.take() {
			got = append(got, p.Opcode)
		}
		if want := []wire.Opcode{wire.CNP, wire.RCAck, wire.RCAck}; !slices.Equal(got, want) {
			t.Errorf("the engine sent %v", got)
		}
		r.counts(2, 1, 0, 0)
	})
}
