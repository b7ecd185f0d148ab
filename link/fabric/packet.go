package fabric

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/link/checksum"
)

// packet is a frame on its way. It is a cache line.
type packet struct {
	next  *packet // in its queue
	frame []byte  // its capacity is that of the pool, see newPacket
	flow  uint64  // QP and class that the adapter takes turns by
	hash  uint32  // of the flow, for ECMP
	size  int32   // bytes of the wire that it takes
	to    int32   // index of its host; -1: all but the sender
	from  int32   // index of the sender
	in    int32   // index of the port at which it came into the switch that holds it; -1: none
	cuts  uint16  // of its cable, when it was sent; it wraps
	class uint8   // 0 to 7
	kind  kind
}

// kind is what the headers of a packet say: the version of IP, or 0, and flags.
type kind uint8

const (
	ofIPv4 kind = 4
	ofIPv6 kind = 6
	ofIP   kind = 7
	first  kind = 8  // the adapter sends it before data: acknowledgements and the like
	reply  kind = 16 // a response or an acknowledgement: those of a QP stay in order
	roce   kind = 32 // RoCEv2
)

const (
	// overhead is what a frame takes on the wire besides its bytes (IEEE 802.3): preamble, FCS, gap.
	overhead = 8 + 4 + 12
	minFrame = 60 // without FCS
	// pauseFrame is what a PFC frame takes on the wire (IEEE 802.1Qbb).
	pauseFrame = minFrame + overhead
)

// Rooms of packets that need no large one: smallRoom is enough for acknowledgements.
const (
	smallRoom  = 192
	middleRoom = 2048
)

// pool has unused packets.
type pool []*packet

func (s *shard) newPacket(n int) (p *packet) {
	pool, room := &s.small, smallRoom
	switch {
	case n > middleRoom:
		pool, room = &s.large, s.f.maxFrame()
	case n > smallRoom:
		pool, room = &s.middle, middleRoom
	}
	if last := len(*pool) - 1; last >= 0 {
		p, *pool = (*pool)[last], (*pool)[:last]
	} else {
		p = &packet{frame: make([]byte, room)}
	}
	*p = packet{frame: p.frame[:n], size: int32(max(n, minFrame) + overhead), in: -1}
	return p
}

func (s *shard) free(p *packet) {
	pool := &s.large
	switch cap(p.frame) {
	case smallRoom:
		pool = &s.small
	case middleRoom:
		pool = &s.middle
	}
	*pool = append(*pool, p)
}

// copyOf returns a copy of a packet.
func (s *shard) copyOf(p *packet) *packet {
	c := s.newPacket(len(p.frame))
	copy(c.frame, p.frame)
	c.size, c.to, c.from, c.class, c.kind, c.hash, c.flow = p.size, p.to, p.from, p.class, p.kind, p.hash, p.flow
	return c
}

// roCEPort is the UDP port of RoCEv2.
const roCEPort = 4791

// classify sets what switches and adapters need to know of a packet. It returns false if no host of
// the fabric is to receive it.
func (f *Fabric) classify(p *packet) bool {
	switch b := p.frame; {
	case len(b) < 14:
		return false
	case b[0]&1 != 0:
		p.to = -1
	case b[0] != macPrefix[0] || b[1] != macPrefix[1] || b[2] != macPrefix[2]:
		return false
	default:
		p.to = int32(b[3])<<16 | int32(b[4])<<8 | int32(b[5]) - 1
		if p.to < 0 || int(p.to) >= len(f.hosts) || p.to == p.from {
			return false
		}
	}
	f.describe(p)
	return true
}

// describe sets what follows from a packet's headers and its destination. It has an Ethernet
// header.
func (f *Fabric) describe(p *packet) {
	b, ports := p.frame, 0
	switch kind := binary.BigEndian.Uint16(b[12:]); {
	case kind == 0x0800 && len(b) >= 14+20 && b[14] == 0x45:
		p.kind, p.class = ofIPv4, f.classes[b[15]>>2]
		p.hash = mix(binary.BigEndian.Uint32(b[26:])) ^ binary.BigEndian.Uint32(b[30:])
		if (b[23] == 6 || b[23] == 17) && (b[20]&0x3f)|b[21] == 0 {
			ports = 14 + 20
		}
		p.flow = uint64(b[23])
	case kind == 0x86dd && len(b) >= 14+40:
		p.kind, p.class = ofIPv6, f.classes[(b[14]<<4|b[15]>>4)>>2]
		for i := 22; i < 54; i += 4 {
			p.hash = mix(p.hash) ^ binary.BigEndian.Uint32(b[i:])
		}
		if b[20] == 6 || b[20] == 17 {
			ports = 14 + 40
		}
		p.flow = uint64(b[20])
	case kind == 0x8100 && len(b) >= 16:
		p.class = b[14] >> 5 // the priority of the tag
	default:
		p.kind = first // ARP
	}
	p.flow |= uint64(p.class)<<56 | uint64(uint32(p.to)&0xffffff)<<32
	if ports == 0 || len(b) < ports+8 {
		return
	}
	p.hash = mix(p.hash) ^ binary.BigEndian.Uint32(b[ports:])
	bth := ports + 8
	if len(b) < bth+12 || binary.BigEndian.Uint16(b[ports+2:]) != roCEPort {
		p.flow |= uint64(binary.BigEndian.Uint16(b[ports:])) << 8
		return
	}
	if uint8(p.flow) == 17 {
		p.kind |= roce
	}
	qpn := binary.BigEndian.Uint32(b[bth+4:]) & 0xffffff
	switch opcode := b[bth]; {
	case opcode == opAcknowledge, opcode == opAtomicAcknowledge:
		p.kind |= first | reply
	case opcode == opCNP:
		p.kind |= first
	case opcode >= opReadResponse && opcode <= opAtomicAcknowledge:
		p.kind |= reply
	}
	p.flow = p.flow&^0xff | uint64(qpn)<<8
	if f.cfg.Switch.ECMP == HashQP {
		p.hash = mix(p.hash) ^ qpn
	}
}

// Opcodes of the BTH: the first of the four of READ responses, and those that an adapter sends
// first.
const (
	opReadResponse      = 0x0d
	opAcknowledge       = 0x11
	opAtomicAcknowledge = 0x12
	opCNP               = 0x81
)

// mix is the finalizer of MurmurHash3, a bijection of well mixed bits.
func mix(h uint32) uint32 {
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}

// mark sets Congestion Experienced (RFC 3168) if the packet's transport knows ECN. It returns false
// if not, or if an earlier switch has set it.
func (p *packet) mark() bool {
	switch p.kind & ofIP {
	case ofIPv4:
		if ecn := p.frame[15] & 3; ecn == 0 || ecn == 3 {
			return false
		}
		p.frame[15] |= 3
		checksum.PutIPv4(p.frame[14 : 14+20])
	case ofIPv6:
		if ecn := p.frame[15] >> 4 & 3; ecn == 0 || ecn == 3 {
			return false
		}
		p.frame[15] |= 0x30
	default:
		return false
	}
	return true
}

// fifo is a queue of packets.
type fifo struct {
	head, tail *packet
	bytes      int
}

func (q *fifo) push(p *packet) {
	p.next = nil
	if q.tail == nil {
		q.head = p
	} else {
		q.tail.next = p
	}
	q.tail = p
	q.bytes += int(p.size)
}

func (q *fifo) pop() *packet {
	p := q.head
	if q.head = p.next; q.head == nil {
		q.tail = nil
	}
	q.bytes -= int(p.size)
	return p
}
