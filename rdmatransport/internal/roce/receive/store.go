package receive

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// store is the packets of one QP behind a gap, until what is missing before them has come. It
// exists while there is a gap.
//
// They are kept and executed in order, not placed at once: a WRITE behind a request that turns out
// to be in error must leave no trace, an application may wait for the last byte of a message to
// change, and keys and receive requests are to be looked at when a packet's turn comes. That is a
// second copy for packets behind a gap, and none for others.
type store struct {
	have []uint64 // which are here, by slot
	size []uint16 // bytes of each
	data []byte   // slots of as many bytes as a packet can have, by PSN modulo the span
	text []byte   // room for a selective acknowledgement

	room     int           // bytes of a slot
	mask     uint32        // number of slots less one
	count    int           // packets that are here
	top      uint32        // one past the highest PSN here
	until    int           // packets until the peer is told again
	turn     uint32        // PSN of the last packet whose turn has come
	moved    bool          // something that was missing has come
	told     bool          // the peer was told of some
	deadline time.Duration // when all are dropped, unless something that was missing comes before
}

// stores is the stores of a device.
type stores struct {
	inUse atomic.Int32
	pool  sync.Pool
}

// take is an empty store for packets behind PSN expected of a peer that has so many bytes in flight
// at most; nil where too many QPs have one.
func (s *stores) take(expected, mtu, window uint32, deadline time.Duration) *store {
	if s.inUse.Add(1) > MaxStores {
		s.inUse.Add(-1)
		return nil
	}
	k, _ := s.pool.Get().(*store)
	if k == nil {
		slots := send.Span(send.Window(window, 0)) // of the smallest packets
		k = &store{have: make([]uint64, slots/64), size: make([]uint16, slots), data: make([]byte, 2*window+slots*HeaderRoom),
			text: make([]byte, 0, wire.MaxSackLen)}
	}
	k.room, k.mask = int(mtu)+HeaderRoom, send.Span(send.Window(window, mtu))-1
	k.top, k.until, k.told, k.deadline = expected, sackEvery, false, deadline
	return k
}

// give gives a store back.
func (s *stores) give(k *store) {
	clear(k.have[:])
	k.count = 0
	s.inUse.Add(-1)
	s.pool.Put(k)
}

// fits reports whether a packet so far behind the expected one has a slot that is large enough.
func fits(p *wire.Packet, distance int32, mtu, window uint32) bool {
	return distance < int32(send.Span(send.Window(window, mtu))) && p.Size() <= int(mtu)+HeaderRoom
}

// add keeps a packet. It returns whether the packet shows another gap, and whether the peer is to
// be told of all that is kept. It is not ok if another packet with that PSN is kept.
func (k *store) add(p *wire.Packet) (gap, tell, ok bool) {
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
		clear(b[n:]) // the pad and the ICRC, which nobody looks at again
		k.have[slot/64] |= bit
		k.size[slot] = uint16(len(b))
		k.count++
	}
	if gap = wire.PSNDiff(p.PSN, k.top) > 0; gap {
		k.until = min(k.until, send.LossEvidence) // fewer may only have changed their order
	}
	if wire.PSNDiff(p.PSN, k.top) >= 0 {
		k.top = wire.PSNAdd(p.PSN, 1)
	}
	if k.until--; k.until <= 0 || p.AckReq {
		k.until, tell = sackEvery, true
	}
	return gap, tell, true
}

// samePacket reports whether a packet is the one that is kept, but for what may differ when it is
// sent again: its request for an acknowledgement and its mark, the ECN bits, the ICRC.
func samePacket(kept []byte, p *wire.Packet) bool {
	if len(kept) != p.Size() {
		return false
	}
	var header [wire.MaxHeaderLen]byte
	n := p.EncodeHeader(header[:])
	return bytes.Equal(kept[:4], header[:4]) && bytes.Equal(kept[wire.BTHLen:n], header[wire.BTHLen:n]) &&
		bytes.Equal(kept[n:n+len(p.Payload)], p.Payload)
}

// begin notes that the turn of packet psn has come, which was missing.
func (k *store) begin(psn uint32) { k.turn, k.moved = psn, false }

// next takes the packet out whose turn it is, if it is here; p refers to the store.
func (k *store) next(expected uint32, p *wire.Packet) bool {
	if k.turn == expected {
		return false // the packet before is to come again
	}
	k.moved = true
	// A READ takes the PSNs of its responses: packets that claim these PSNs are not the peer's.
	for psn := wire.PSNAdd(k.turn, 1); psn != expected && wire.PSNDiff(psn, k.turn) <= int32(k.mask); psn = wire.PSNAdd(psn, 1) {
		k.remove(psn & k.mask)
	}
	slot := expected & k.mask
	if !k.remove(slot) {
		return false
	}
	_ = p.Parse(k.data[int(slot)*k.room:][:k.size[slot]]) // it did before
	k.turn = expected
	return true
}

// remove frees a slot; false if it was free.
func (k *store) remove(slot uint32) bool {
	bit := uint64(1) << (slot % 64)
	if k.have[slot/64]&bit == 0 {
		return false
	}
	k.have[slot/64] &^= bit
	k.count--
	return true
}

// extend moves the deadline, if something that was missing has come.
func (k *store) extend(deadline time.Duration) {
	if k.moved {
		k.deadline = deadline
	}
}

// sack is a selective acknowledgement of all, or of as many as a packet has room to tell of. It
// refers to the store.
func (k *store) sack(expected uint32) wire.Sack {
	all := k.have[:(k.mask+1)/64]
	return wire.AppendSack(k.text, (k.room-HeaderRoom)&^3, uint32(wire.PSNDiff(k.top, expected))-1, func(i uint32) uint64 {
		from := expected + 1 + i
		at, shift := int(from/64), from%64
		return all[at&(len(all)-1)]>>shift | all[(at+1)&(len(all)-1)]<<(64-shift)
	})
}

// tellPeer notes that the peer is told.
func (k *store) tellPeer() { k.told = true }
