package rocetransport_test

import (
	"bytes"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// TestRun checks packets in the middle of a WRITE in one frame without ICRC. They have the same
// effect as in separate frames, whatever is wrong with one of them.
func TestRun(t *testing.T) {
	const middles, odd = 8, 3 // the different one is packet 3 of the frame
	type change func(r *rig, d *stack.Datagram, odd []byte)
	whole := func(length int) int { return length }
	for _, c := range []struct {
		name   string
		change change
		length func(length int) int // length in the WRITE's RETH
		state  verbs.QPState
	}{
		{"right", func(*rig, *stack.Datagram, []byte) {}, whole, verbs.StateRTS},
		{"one requests an acknowledgement", func(_ *rig, _ *stack.Datagram, b []byte) { b[8] |= 0x80 }, whole, verbs.StateRTS},
		{"a PSN is left out", func(_ *rig, _ *stack.Datagram, b []byte) { b[11]++ }, whole, verbs.StateRTS},
		{"a PSN arrives twice", func(_ *rig, _ *stack.Datagram, b []byte) { b[11]-- }, whole, verbs.StateRTS},
		{"another QP", func(_ *rig, _ *stack.Datagram, b []byte) { b[7] ^= 1 }, whole, verbs.StateRTS},
		{"another partition", func(_ *rig, _ *stack.Datagram, b []byte) { b[3] ^= 1 }, whole, verbs.StateRTS},
		{"another version", func(_ *rig, _ *stack.Datagram, b []byte) { b[1] |= 1 }, whole, verbs.StateRTS},
		{"a reserved bit", func(_ *rig, _ *stack.Datagram, b []byte) { b[4] |= 1 }, whole, verbs.StateRTS},
		{"pad in the middle", func(_ *rig, _ *stack.Datagram, b []byte) { b[1] |= 1 << 4 }, whole, verbs.StateErr},
		{"the last one in the middle", func(_ *rig, _ *stack.Datagram, b []byte) { b[0] = byte(wire.RCWriteLast) }, whole, verbs.StateErr},
		{"of another message", func(_ *rig, _ *stack.Datagram, b []byte) { b[0] = byte(wire.RCSendMiddle) }, whole, verbs.StateErr},
		{"from another address", func(r *rig, d *stack.Datagram, _ []byte) { d.Src = r.us }, whole, verbs.StateRTS},
		{"longer than it says", func(*rig, *stack.Datagram, []byte) {}, func(n int) int { return n / 2 }, verbs.StateErr},
		{"no longer than the received data", func(*rig, *stack.Datagram, []byte) {}, func(n int) int { return n - 256 }, verbs.StateErr},
		{"of a deregistered region", func(r *rig, _ *stack.Datagram, _ []byte) {
			if err := r.mr.Close(); err != nil {
				t.Fatal(err)
			}
		}, whole, verbs.StateErr},
	} {
		t.Run(c.name, func(t *testing.T) {
			type effect struct {
				memory   string
				last     wire.BTH // of the last packet sent
				aeth     wire.AETH
				state    verbs.QPState
				received uint64
			}
			var effects []effect
			for _, together := range []bool{false, true} {
				r := newRig(t, config{mtu: verbs.MTU256, size: 1 << 14})
				length := 256 * (middles + 2)
				data := fill(length, 7)
				r.give(r.req(wire.RCWriteFirst, 0, data[:256], r.at(0, uint32(c.length(length)))))
				var pkts []wire.Packet
				for i := range middles {
					pkts = append(pkts, r.req(wire.RCWriteMiddle, 1+i, data[256*(1+i):][:256]))
				}
				d := r.frame(pkts...)
				d.NoICRC = true
				size := d.SegmentSize
				c.change(r, d, d.Payload[odd*size:][:size])
				if together {
					r.port.receive(d)
				} else {
					for ; len(d.Payload) > 0; d.Payload = d.Payload[size:] {
						one := *d
						one.Payload, one.Header = d.Payload[:size], bytes.Clone(d.Header)
						r.port.receive(&one)
					}
				}
				r.give(r.req(wire.RCWriteLast, 1+middles, data[256*(1+middles):], ackReq))
				e := effect{memory: string(r.buf), state: r.qp.State()}
				// Packets after an error in the same frame are counted.
				if e.state == verbs.StateRTS {
					e.received = r.counter("rcvd_pkts")
				}
				if sent := r.take(); len(sent) > 0 {
					e.last, e.aeth = sent[len(sent)-1].BTH, sent[len(sent)-1].AETH
				}
				e.last.Reserved7 = 0 // the mark is random
				r.guards()
				effects = append(effects, e)
			}
			alone, together := effects[0], effects[1]
			if alone != together {
				same := alone.memory == together.memory
				alone.memory, together.memory = "", ""
				t.Errorf("in frames of their own: %+v; in one frame: %+v; same memory: %v", alone, together, same)
			}
			if together.state != c.state {
				t.Errorf("the QP is in %v, want %v", together.state, c.state)
			}
		})
	}
}

// BenchmarkRun is a WRITE of 62 packets without ICRC, 60 of them in one frame.
func BenchmarkRun(b *testing.B) {
	const middles = 60
	r := benchRig(b, config{mtu: verbs.MTU1024})
	part := make([]byte, 1024)
	var pkts []wire.Packet
	for range middles {
		pkts = append(pkts, r.req(wire.RCWriteMiddle, 0, part))
	}
	frames := []*stack.Datagram{
		r.frame(r.req(wire.RCWriteFirst, 0, part, r.at(0, (middles+2)*1024))), r.frame(pkts...),
		r.frame(r.req(wire.RCWriteLast, 0, part, ackReq)),
	}
	b.SetBytes((middles + 2) * 1024)
	b.ReportAllocs()
	psn := r.c.rqPSN
	var again stack.Datagram
	for b.Loop() {
		for _, d := range frames {
			for at := 0; at < len(d.Payload); at += d.SegmentSize {
				p := d.Payload[at:]
				p[9], p[10], p[11] = byte(psn>>16), byte(psn>>8), byte(psn)
				psn = wire.PSNAdd(psn, 1)
			}
			again = *d
			again.NoICRC = true
			r.port.receive(&again)
		}
	}
	if r.qp.State() != verbs.StateRTS || r.counter("out_of_seq_request") > 0 {
		b.Fatal("refused")
	}
}
