package rocetransport_test

// The hot paths, each with 0 allocs/op: posting and sending; receiving, placing, completing and
// acknowledging. The port discards what is sent.

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

func benchRig(b *testing.B, c config) *rig {
	c.cqe, c.size = 1<<16, 1<<20
	r := newRig(b, c)
	r.port.discard = true
	r.port.Sender().Flush() // creates the sender
	return r
}

// packet is one packet of the peer, given repeatedly with different PSNs.
type packet struct {
	r      *rig
	d      stack.Datagram
	given  stack.Datagram // consumed by the engine
	header []byte
	psn    uint32
}

func (r *rig) packet(p wire.Packet) *packet {
	d := r.frame(p)
	return &packet{r: r, d: *d, header: bytes.Clone(d.Header), psn: p.PSN}
}

// give passes it to the engine and advances the PSN by n.
func (p *packet) give(n uint32) {
	b := p.d.Payload
	binary.BigEndian.PutUint32(b[8:], uint32(b[8])<<24|p.psn)
	wire.PutICRC(p.header, b)
	p.given = p.d
	p.r.port.receive(&p.given)
	p.psn = wire.PSNAdd(p.psn, n)
}

// drain empties a CQ.
func drain(b *testing.B, cq *verbs.CQ, wcs []verbs.WC) (n int) {
	for {
		k, err := cq.Poll(wcs)
		if err != nil {
			b.Fatal(err)
		}
		for i := range k {
			if wcs[i].Status != verbs.WCSuccess {
				b.Fatal(wcs[i].Status)
			}
		}
		if n += k; k == 0 {
			return n
		}
	}
}

// BenchmarkPost posts, sends, acknowledges and polls a request.
func BenchmarkPost(b *testing.B) {
	for _, c := range []struct {
		op     verbs.WROpcode
		n      int
		inline bool
		batch  int
		mtu    verbs.MTU // 0: 4096
	}{
		{op: verbs.Send, n: 64},
		{op: verbs.Send, n: 64, inline: true},
		{op: verbs.RDMAWrite, n: 4 << 10},
		{op: verbs.RDMAWrite, n: 64 << 10},
		// Superframes, as on TAP and AF_PACKET.
		{op: verbs.RDMAWrite, n: 64 << 10, batch: 15},
		// The same with the default MTU.
		{op: verbs.RDMAWrite, n: 64 << 10, batch: 62, mtu: verbs.MTU1024},
	} {
		name := fmt.Sprintf("%v %d", c.op, c.n)
		if c.inline {
			name += " inline"
		}
		if c.batch > 0 {
			name += " superframe"
		}
		if c.mtu == 0 {
			c.mtu = verbs.MTU4096
		} else {
			name += fmt.Sprintf(" MTU %d", c.mtu.Bytes())
		}
		b.Run(name, func(b *testing.B) {
			r := benchRig(b, config{mtu: c.mtu, batch: c.batch})
			wr := r.wr(1, c.op, c.n)
			if c.inline {
				wr.Flags |= verbs.SendInline
			}
			packets := max(1, c.n/c.mtu.Bytes())
			ack := r.packet(r.ack(packets - 1))
			wcs := make([]verbs.WC, 16)
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.qp.PostSend(wr); err != nil {
					b.Fatal(err)
				}
				ack.give(uint32(packets))
				if drain(b, r.scq, wcs) != 1 {
					b.Fatal("not complete")
				}
			}
		})
	}
}

// BenchmarkPostCongested is BenchmarkPost with congestion control, without sleeps. Acknowledgements
// have an ECN mark, and each is answered by a CNP.
func BenchmarkPostCongested(b *testing.B) {
	const size = 64 << 10
	r := benchRig(b, config{mtu: verbs.MTU4096, dcqcn: &roce.DCQCN{RPGMaxRate: 1 << 50, MinTimeBetweenCNPs: 1}})
	wr := r.wr(1, verbs.RDMAWrite, size)
	ack, cnp := r.packet(r.ack(size/4096-1)), r.packet(r.cnp())
	ack.d.TrafficClass = 3
	wcs := make([]verbs.WC, 16)
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		if err := r.qp.PostSend(wr); err != nil {
			b.Fatal(err)
		}
		ack.give(size / 4096)
		if drain(b, r.scq, wcs) != 1 {
			b.Fatal("not complete")
		}
	}
	cnp.give(0)
	if r.counter("np_cnp_sent") == 0 || r.counter("rp_cnp_handled") == 0 {
		b.Error("no congestion")
	}
}

// BenchmarkPostSmall posts small requests one by one that share frames.
func BenchmarkPostSmall(b *testing.B) {
	const depth = 64
	r := benchRig(b, config{mtu: verbs.MTU1024, batch: 62})
	wr := r.wr(1, verbs.RDMAWrite, 8)
	ack := r.packet(r.ack(depth - 1))
	wcs := make([]verbs.WC, depth)
	left := depth
	b.ReportAllocs()
	for b.Loop() {
		if err := r.qp.PostSend(wr); err != nil {
			b.Fatal(err)
		}
		if left--; left > 0 {
			continue
		}
		left = depth
		r.dev.Provider().EndProgress() // like a waiting application
		for n := 0; n < depth; n += drain(b, r.scq, wcs) {
			ack.give(0) // repeated if the timer has just sent the delayed packets
		}
		ack.psn = wire.PSNAdd(ack.psn, depth)
	}
}

// BenchmarkReceive places and acknowledges a request packet.
func BenchmarkReceive(b *testing.B) {
	for _, c := range []struct {
		op wire.Opcode
		n  int
	}{
		{wire.RCWriteOnly, 64}, {wire.RCWriteOnly, 4096}, {wire.RCSendOnly, 64}, {wire.RCSendOnly, 4096},
		{wire.RCReadRequest, 4096}, {wire.RCFetchAdd, 0},
	} {
		b.Run(fmt.Sprintf("%v %d", c.op, c.n), func(b *testing.B) {
			r := benchRig(b, config{mtu: verbs.MTU4096})
			var payload []byte
			if c.op.Info().HasPayload() {
				payload = fill(c.n, 1)
			}
			p := r.packet(r.req(c.op, 0, payload, r.at(0, uint32(c.n)), r.atomic(0, 0, 1), ackReq))
			recv := &verbs.RecvWR{SGList: []verbs.SGE{r.mr.SGE(0, 4096)}}
			wcs := make([]verbs.WC, 16)
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			for b.Loop() {
				if c.op == wire.RCSendOnly {
					if err := r.qp.PostRecv(recv); err != nil {
						b.Fatal(err)
					}
				}
				p.give(1)
				drain(b, r.rcq, wcs)
			}
			b.StopTimer()
			if r.qp.State() != verbs.StateRTS {
				b.Fatal("refused")
			}
		})
	}
}

// BenchmarkSuperframe receives a WRITE of 15 packets in one frame.
func BenchmarkSuperframe(b *testing.B) {
	const packets = 15
	r := benchRig(b, config{mtu: verbs.MTU4096})
	var pkts []wire.Packet
	for i := range packets {
		pkts = append(pkts, r.req(wire.RCWriteOnly, i, fill(4096, 1), r.at(4096*i, 4096), ackReq))
	}
	d := r.frame(pkts...)
	b.SetBytes(packets * 4096)
	b.ReportAllocs()
	psn := r.c.rqPSN
	h := bytes.Clone(d.Header)
	var again stack.Datagram
	for b.Loop() {
		b.StopTimer()
		for i := range packets {
			p := d.Payload[i*d.SegmentSize:][:d.SegmentSize]
			binary.BigEndian.PutUint32(p[8:], 1<<31|psn)
			putHeader(h, d.Src, d.Dst, d.SrcPort, i, len(p))
			wire.PutICRC(h, p)
			psn = wire.PSNAdd(psn, 1)
		}
		again = *d
		putHeader(again.Header, d.Src, d.Dst, d.SrcPort, 0, len(d.Payload))
		b.StartTimer()
		r.port.receive(&again)
	}
	if r.qp.State() != verbs.StateRTS || r.counter("icrc_errors")+r.counter("out_of_seq_request") > 0 {
		b.Fatal("refused")
	}
}

// BenchmarkRespond answers a READ of 64 KiB.
func BenchmarkRespond(b *testing.B) {
	for _, c := range []struct {
		mtu   verbs.MTU
		batch int
	}{{verbs.MTU1024, 62}, {verbs.MTU4096, 15}} {
		b.Run(fmt.Sprintf("MTU %d", c.mtu.Bytes()), func(b *testing.B) {
			const n = 64 << 10
			r := benchRig(b, config{mtu: c.mtu, batch: c.batch})
			p := r.packet(r.req(wire.RCReadRequest, 0, nil, r.at(0, n), ackReq))
			b.SetBytes(n)
			b.ReportAllocs()
			for b.Loop() {
				p.give(uint32(n / c.mtu.Bytes()))
			}
			if r.qp.State() != verbs.StateRTS {
				b.Fatal("failed")
			}
		})
	}
}

// BenchmarkReadResponse places one packet of a READ. READs of 16 packets are posted and polled
// along the way.
func BenchmarkReadResponse(b *testing.B) {
	const packets = 16
	r := benchRig(b, config{mtu: verbs.MTU4096})
	wr := r.wr(1, verbs.RDMARead, packets*4096)
	p := r.packet(r.data(wire.RCReadResponseMiddle, 0, fill(4096, 1)))
	wcs := make([]verbs.WC, 16)
	b.SetBytes(4096)
	b.ReportAllocs()
	left := 0
	for b.Loop() {
		if left == 0 {
			drain(b, r.scq, wcs)
			if err := r.qp.PostSend(wr); err != nil {
				b.Fatal(err)
			}
			left = packets
		}
		p.give(1)
		left--
	}
	if r.qp.State() != verbs.StateRTS {
		b.Fatal("failed")
	}
}

// BenchmarkAck handles an acknowledgement that completes nothing yet. Packets of its message, which
// has the largest size, are sent along the way.
func BenchmarkAck(b *testing.B) {
	r := benchRig(b, config{mtu: verbs.MTU256})
	var list []verbs.SGE
	for range 32 {
		list = append(list, r.mr.SGE(0, 1<<20))
	}
	wr := &verbs.SendWR{Opcode: verbs.RDMAWrite, SGList: list, RemoteAddr: peerAddr, RKey: peerKey}
	ack := r.packet(r.ack(0))
	left := 0
	b.ReportAllocs()
	for b.Loop() {
		if left == 0 {
			if err := r.qp.PostSend(wr); err != nil {
				b.Fatal(err)
			}
			left = 32 << 20 / 256
		}
		ack.give(1)
		left--
	}
	if r.qp.State() != verbs.StateRTS {
		b.Fatal("failed")
	}
}

// BenchmarkDuplicate measures a late packet.
func BenchmarkDuplicate(b *testing.B) {
	r := benchRig(b, config{})
	p := r.packet(r.req(wire.RCWriteOnly, -1, fill(64, 1), r.at(0, 64)))
	b.ReportAllocs()
	for b.Loop() {
		p.give(0)
	}
}

// BenchmarkPoll takes a completion from a CQ.
func BenchmarkPoll(b *testing.B) {
	r := benchRig(b, config{maxWR: 1024})
	recv := &verbs.RecvWR{SGList: []verbs.SGE{r.mr.SGE(0, 64)}}
	p := r.packet(r.req(wire.RCSendOnly, 0, nil))
	wcs := make([]verbs.WC, 1)
	left := 0
	b.ReportAllocs()
	for b.Loop() {
		if left == 0 {
			b.StopTimer()
			for range 1024 {
				if err := r.qp.PostRecv(recv); err != nil {
					b.Fatal(err)
				}
				p.give(1)
			}
			left = 1024
			b.StartTimer()
		}
		if n, err := r.rcq.Poll(wcs); n != 1 || err != nil {
			b.Fatal(n, err)
		}
		left--
	}
}
