package trace

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// A capture of a sender's own interface, or of a TAP or veth, has superframes (UDP segmentation
// offload): one frame with several datagrams of the same size, except for the last. The frame does
// not give the size. The ICRC of the first datagram does: it is right for one length only.

const (
	// leastPacket and mostPacket bound the UDP payload of a RoCE packet in bytes.
	leastPacket = wire.BTHLen + wire.ICRCLen
	mostPacket  = wire.MaxHeaderLen + 4096 + wire.ICRCLen
)

// superframe analyses each packet of a superframe except the last, which it stores in the frame. It
// returns false if the frame is not a superframe.
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
		a.ev = event{number: f.number, time: f.time, src: f.src, dst: f.dst, sport: f.srcPort, dport: f.dstPort, shown: true, roce: true,
			findings: findings}
		a.copied = false
	}
}

// cutSuperframe analyses the complete packets of a truncated superframe. It returns false if the
// frame is not known to be a superframe.
func (a *analysis) cutSuperframe(f *frame) bool {
	if f.header == nil {
		return false
	}
	n := a.segmentLength(f)
	if n == 0 && (f.v1 || f.length <= mostPacket) {
		return false
	}
	if a.counts.Cut++; a.counts.Cut == 1 {
		a.report(note, nil, f.number,
			"a frame of several packets, of which the capture does not have all: what is missing from now on is DOUBTFUL")
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

// endless reports whether a packet is not the last of its message and its payload is a full path
// MTU, so that it is a single packet.
func endless(p *wire.Packet) bool {
	info, n := p.Opcode.Info(), len(p.Payload)
	return info.HasPayload() && !info.Last() && isMTU(n)
}

// isMTU reports whether a path MTU may be n bytes.
func isMTU(n int) bool { return n >= 256 && n <= 4096 && n&(n-1) == 0 }

// segmentLength returns the length of the packets of a superframe, or 0 if the frame is not one.
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

// rightICRC reports whether a packet has its ICRC, or that of a FLUSH of Linux's rxe.
func rightICRC(header, b []byte) bool {
	return wire.CheckICRC(header, b) || wire.CheckRxeFlushICRC(header, b)
}

// fits reports whether the ICRC is right for the first n bytes as a packet.
func (a *analysis) fits(f *frame, n int) bool {
	return n >= leastPacket && rightICRC(a.headerOf(f.header, f.id, n), f.payload[:n])
}

// counting reports whether the packets of a superframe increment the IPv4 identification, as
// Linux's do.
func (a *analysis) counting(f *frame, n int) bool {
	b := f.payload[n:min(2*n, len(f.payload))]
	return len(b) < leastPacket || !rightICRC(a.headerOf(f.header, f.id, len(b)), b)
}

// headerOf returns the IP and UDP headers of a packet of n bytes of a superframe. They are valid
// until the next call.
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
