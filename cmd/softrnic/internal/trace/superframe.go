package trace

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// A capture of a sender's own interface, or of a TAP or veth, has superframes: several datagrams of one size, but for the last, in
// one frame that an interface is to cut (UDP segmentation offload). Nothing in the frame says how long a datagram is, but the ICRC
// of the first one does: it is right for one length only.

const (
	// leastPacket and mostPacket bound what a RoCE packet has behind the UDP header, in bytes.
	leastPacket = wire.BTHLen + wire.ICRCLen
	mostPacket  = wire.MaxHeaderLen + 4096 + wire.ICRCLen
)

// superframe looks at each packet of a superframe but the last, which it makes the frame. It returns false if the frame is none.
func (a *analysis) superframe(f *frame) bool {
	n := a.segmentLength(f)
	if n == 0 {
		return false
	}
	f.cuts = 0
	counted := a.counting(f, n)
	a.counts.Superframes++
	all, id := f.payload, f.id
	for i := 0; ; i++ {
		b := all[i*n : min((i+1)*n, len(all))]
		if counted {
			f.id = id + uint16(i)
		}
		f.header = a.headerOf(f.header, f.id, len(b))
		f.payload, f.length = b, len(b)
		if (i+1)*n >= len(all) {
			return true
		}
		a.counts.RoCE++
		a.roce(f)
		a.out.packet(a, &a.ev)
		findings := a.ev.findings[:0]
		a.ev = event{number: f.number, time: f.time, src: f.src, dst: f.dst, sport: f.srcPort, dport: f.dstPort, shown: true, roce: true, findings: findings}
		a.copied = false
	}
}

// cutSuperframe looks at the packets of a superframe that the capture does not have to its end, as far as each is there whole. It
// returns false if the frame is none, as far as can be told.
func (a *analysis) cutSuperframe(f *frame) bool {
	if f.header == nil {
		return false
	}
	n := a.segmentLength(f)
	if n == 0 && (f.v1 || f.length <= mostPacket) {
		return false
	}
	if a.counts.Cut++; a.counts.Cut == 1 {
		a.report(note, nil, f.number, "a frame of several packets, of which the capture does not have all: what is missing from now on is DOUBTFUL")
	}
	if n == 0 || len(f.payload) < n {
		a.counts.Superframes++
		a.ev.operation = "several packets, cut"
		return true
	}
	f.payload, f.cuts, f.cut = f.payload[:len(f.payload)/n*n], n, false
	a.superframe(f)
	a.roce(f)
	return true
}

// endless says whether a packet is not its message's last and has as much payload as a path MTU allows, so that it is a single one.
func endless(p *wire.Packet) bool {
	info, n := p.Opcode.Info(), len(p.Payload)
	return info.HasPayload() && !info.Last() && isMTU(n)
}

// isMTU says whether a path MTU may be n bytes.
func isMTU(n int) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

// segmentLength is how long the packets of a superframe are; 0: it is none.
func (a *analysis) segmentLength(f *frame) int {
	if f.v1 || f.length < 2*leastPacket {
		return 0
	}
	if f.cuts > 0 {
		return f.cuts
	}
	most := min(f.length-leastPacket, mostPacket, len(f.payload))
	if a.segment0 <= most && a.fits(f, a.segment0) {
		return a.segment0
	}
	for n := leastPacket; n <= most; n += 4 { // PadCnt makes it a multiple of 4
		if a.fits(f, n) {
			a.segment0 = n
			return n
		}
	}
	return 0
}

// fits says whether the ICRC is right of the first n bytes as a packet.
func (a *analysis) fits(f *frame, n int) bool {
	return n >= leastPacket && wire.CheckICRC(a.headerOf(f.header, f.id, n), f.payload[:n])
}

// counting says whether the packets of a superframe count on in the IPv4 identification. Linux's do.
func (a *analysis) counting(f *frame, n int) bool {
	b := f.payload[n:min(2*n, len(f.payload))]
	return len(b) < leastPacket || !wire.CheckICRC(a.headerOf(f.header, f.id, len(b)), b)
}

// headerOf is the IP and UDP header of a packet of n bytes that was cut from a superframe. It is valid until the next call.
func (a *analysis) headerOf(header []byte, id uint16, n int) []byte {
	h := a.header[:copy(a.header[:], header)]
	if h[0]>>4 == 4 {
		binary.BigEndian.PutUint16(h[2:], uint16(len(h)+n))
		binary.BigEndian.PutUint16(h[4:], id)
	} else {
		binary.BigEndian.PutUint16(h[4:], uint16(8+n))
	}
	binary.BigEndian.PutUint16(h[len(h)-4:], uint16(8+n))
	return h
}
