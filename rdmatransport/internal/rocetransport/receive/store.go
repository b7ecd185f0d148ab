package receive

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// store holds the early packets of one QP until the packets before them arrive. It exists only
// while there is a gap.
//
// Packets are kept and executed in order, and are not placed at once, for three reasons. A WRITE
// after a request in error must not change memory. An application may poll the last byte of a
// message. Keys and receive requests must be looked up in order. Early packets are therefore copied
// twice, and all others once.
type store struct {
	have []uint64 // occupied slots, a bit for each
	size []uint16 // bytes of each
	data []byte   // slots for the longest packets, by PSN modulo the span
	text []byte   // buffer for a selective acknowledgement

	room        int           // bytes of a slot
	mask        uint32        // number of slots less one
	count       int           // occupied slots
	top         uint32        // one past the highest PSN in the store
	untilReport int           // packets until the next selective acknowledgement
	current     uint32        // PSN of the last packet that arrived or was taken out in order
	progress    bool          // a missing packet has arrived
	reported    bool          // packets were reported to the peer
	deadline    time.Duration // all packets are dropped then, unless a missing one arrives before
}

// stores is the set of all stores of a device.
type stores struct {
	inUse atomic.Int32
	pool  sync.Pool
}

// get returns an empty store for packets after PSN expected, from a peer that has at most window
// bytes in flight. It returns nil if too many QPs have a store.
func (s *stores) get(expected, mtu, window uint32, deadline time.Duration) *store {
	if s.inUse.Add(1) > MaxStores {
		s.inUse.Add(-1)
		return nil
	}
	k, _ := s.pool.Get().(*store)
	if k == nil {
		slots, size := Span(window, 0), uint32(0) // enough for each path MTU; with a small one, the span is the largest
		for mtu := uint32(1024); mtu <= 4096; mtu *= 2 {
			size = max(size, Span(window, mtu)*(mtu+HeaderRoom))
		}
		k = &store{have: make([]uint64, slots/64), size: make([]uint16, slots), data: make([]byte, size),
			text: make([]byte, 0, wire.MaxSackLen)}
	}
	k.room, k.mask = int(mtu)+HeaderRoom, Span(window, mtu)-1
	k.top, k.untilReport, k.reported, k.deadline = expected, sackEvery, false, deadline
	return k
}

// put returns a store to the pool.
func (s *stores) put(k *store) {
	clear(k.have[:])
	k.count = 0
	s.inUse.Add(-1)
	s.pool.Put(k)
}

// fits reports whether a packet at this distance from the expected one has a slot that is large
// enough.
func fits(p *wire.Packet, distance int32, mtu, window uint32) bool {
	return distance < int32(Span(window, mtu)) && p.Size() <= int(mtu)+HeaderRoom
}

// add keeps a packet. It returns whether the packet reveals another gap, and whether a selective
// acknowledgement is due. ok is false if a different packet with that PSN is kept.
func (k *store) add(p *wire.Packet) (gap, report, ok bool) {
	slot := p.PSN & k.mask
	at := k.data[int(slot)*k.room:]
	switch bit := uint64(1) << (slot % 64); {
	case k.have[slot/64]&bit != 0:
		if !samePacket(at[:k.size[slot]], p) {
			return false, false, false
		}
	default:
		b := at[:p.Size()]
		n := p.EncodeHeader(b)
		n += copy(b[n:], p.Payload)
		clear(b[n:]) // the pad and the ICRC, which are not read again
		k.have[slot/64] |= bit
		k.size[slot] = uint16(len(b))
		k.count++
	}
	if gap = wire.PSNDiff(p.PSN, k.top) > 0; gap {
		k.untilReport = min(k.untilReport, send.LossEvidence) // fewer may only have been reordered
	}
	if wire.PSNDiff(p.PSN, k.top) >= 0 {
		k.top = wire.PSNAdd(p.PSN, 1)
	}
	if k.untilReport--; k.untilReport <= 0 || p.AckReq {
		k.untilReport, report = sackEvery, true
	}
	return gap, report, true
}

// samePacket reports whether p equals the kept packet. The acknowledgement request, the mark, the
// ECN bits and the ICRC may differ in a retransmission.
func samePacket(kept []byte, p *wire.Packet) bool {
	if len(kept) != p.Size() {
		return false
	}
	var header [wire.MaxHeaderLen]byte
	n := p.EncodeHeader(header[:])
	return bytes.Equal(kept[:4], header[:4]) && bytes.Equal(kept[wire.BTHLen:n], header[wire.BTHLen:n]) &&
		bytes.Equal(kept[n:n+len(p.Payload)], p.Payload)
}

// begin records that the missing packet psn has arrived.
func (k *store) begin(psn uint32) { k.current, k.progress = psn, false }

// next removes the expected packet from the store, if it is there. p refers to the store's memory.
func (k *store) next(expected uint32, p *wire.Packet) bool {
	if k.current == expected {
		return false // the packet before must be retransmitted
	}
	k.progress = true
	// A READ takes the PSNs of its responses. Packets with these PSNs are not the peer's.
	for psn := wire.PSNAdd(k.current, 1); psn != expected && wire.PSNDiff(psn, k.current) <= int32(k.mask); psn = wire.PSNAdd(psn, 1) {
		k.remove(psn & k.mask)
	}
	slot := expected & k.mask
	if !k.remove(slot) {
		return false
	}
	_ = p.Parse(k.data[int(slot)*k.room:][:k.size[slot]]) // it parsed before
	k.current = expected
	return true
}

// remove frees a slot. It returns false if the slot was free.
func (k *store) remove(slot uint32) bool {
	bit := uint64(1) << (slot % 64)
	if k.have[slot/64]&bit == 0 {
		return false
	}
	k.have[slot/64] &^= bit
	k.count--
	return true
}

// extend moves the deadline if a missing packet has arrived.
func (k *store) extend(deadline time.Duration) {
	if k.progress {
		k.deadline = deadline
	}
}

// sack returns a selective acknowledgement of all kept packets, or of as many as fit into a packet.
// It refers to the store's memory.
func (k *store) sack(expected uint32) wire.Sack {
	all := k.have[:(k.mask+1)/64]
	return wire.AppendSack(k.text, (k.room-HeaderRoom)&^3, uint32(wire.PSNDiff(k.top, expected))-1, func(i uint32) uint64 {
		from := expected + 1 + i
		at, shift := int(from/64), from%64
		return all[at&(len(all)-1)]>>shift | all[(at+1)&(len(all)-1)]<<(64-shift)
	})
}

// setReported records that kept packets were reported to the peer.
func (k *store) setReported() { k.reported = true }
