package wire

import (
	"encoding/binary"
	"hash/fnv"
	"math/bits"
)

// Mark is the value of BTH.Reserved7 in every packet of a reliable connection, on a SoftRNIC that
// keeps packets after a gap: 1 to 127, or 0 for none. All other devices send zero, and ignore the
// field (IBTA Vol 1 §9.2).
//
// Each direction of requests, with its answers, has one mark. Both sides compute it from the two QP
// numbers and the first PSN of the requests. An attacker who has not seen packets of the connection
// will usually use a wrong one. A mark has only 7 bits, so its protection is limited: nothing in a
// RoCE packet proves its origin, and the ICRC has no key.
type Mark uint8

// markVersion distinguishes versions: peers with different formats of selective acknowledgements do
// not recognize each other. The previous version had 0, and a bitmap.
const markVersion = 31

// MarkOf returns the mark of the requests from QP requester to QP responder, from PSN first on, and
// of their answers.
func MarkOf(requester, responder, first uint32) Mark {
	h := fnv.New32a()
	var b [12]byte
	binary.BigEndian.PutUint32(b[:], requester)
	binary.BigEndian.PutUint32(b[4:], responder)
	binary.BigEndian.PutUint32(b[8:], first)
	h.Write(b[:])
	return 1 + Mark((uint64(h.Sum32())+markVersion)%127)
}

// Newest returns BTH.Reserved7 of an answer, and of a request packet if no later PSN has been sent.
// On a path that keeps the order, a packet that arrived earlier with a later PSN is not the peer's.
func (m Mark) Newest() uint8 { return uint8(m) }

// Again returns BTH.Reserved7 of a retransmitted request packet, if later PSNs have been sent.
func (m Mark) Again() uint8 {
	if m == 0 {
		return 0
	}
	return uint8((m+62)%127 + 1)
}

const (
	// MaxSackLen is the largest length of a selective acknowledgement in bytes, if the path MTU
	// allows it.
	MaxSackLen = 4096
	// MaxSackPackets is the largest number of packets that it covers.
	MaxSackPackets = 1<<16 - 1
)

// Sack is the payload of a sequence NAK between two peers that mark their packets. It lists which
// packets after the expected one have arrived. It consists of items of 16 bits, each for the
// packets after those of the previous item. The first item begins with the PSN after the NAK's.
//
//	+---+---+---------------------------+
//	| 0 | k |             n             |  n packets, 1 to 16,383: k reports whether they are there
//	+---+---+---------------------------+
//	| 1 |             bits              |  15 packets, the first in the lowest bit: 1 is received
//	+---+-------------------------------+
//	|                 0                 |  the end: no later packet is there
//	+-----------------------------------+
//
// The end is repeated if needed for a length that is a multiple of 4 bytes. A list without an end
// had no room for later packets, and says nothing about them.
//
// A list always ends with a packet that has arrived, except one that says which packet a switch has
// trimmed: see Trimmed.
type Sack []byte

const (
	sackBits  = 1 << 15 // an item of single packets
	sackKept  = 1 << 14 // of a run: the packets have arrived
	sackRun   = 1<<14 - 1
	sackEach  = 15 // packets of an item of single ones
	sackItems = 2  // bytes of an item
)

// AppendSack appends a selective acknowledgement to b, in at most room bytes, a multiple of 4. It
// covers n packets, or the first of them if not all fit. kept returns the bits of the packets from
// number i on, counted from 0: the lowest bit is i's. Bits of packets n and later are ignored.
func AppendSack(b []byte, room int, n uint32, kept func(i uint32) uint64) Sack {
	end := len(b) + room
	for i := uint32(0); i < n; {
		if len(b) == end {
			return b
		}
		w, item := kept(i), uint16(0)
		if w&1 != 0 {
			item = sackKept
		}
		run := runOf(w)
		for run%64 == 0 && i+run < n && run <= sackRun {
			next := kept(i + run)
			if next&1 != w&1 {
				break
			}
			run += runOf(next)
		}
		if run = min(run, n-i, sackRun); run >= sackEach || run == n-i {
			item |= uint16(run)
			i += run
		} else {
			if left := n - i; left < sackEach {
				w &= 1<<left - 1
			}
			item = sackBits | uint16(w)
			i += sackEach
		}
		b = binary.BigEndian.AppendUint16(b, item)
	}
	for len(b) < end {
		if b = append(b, 0, 0); (end-len(b))%4 == 0 {
			break
		}
	}
	return b
}

// AppendTrimmed appends a list that says that the packet at a distance from the NAK's PSN was
// trimmed, up to MaxSackPackets; 0 is the NAK's own PSN. It has runs of missing packets up to that
// packet, and the end: 4 to 12 bytes.
func AppendTrimmed(b []byte, distance uint32) Sack {
	from := len(b)
	for distance > 0 {
		run := min(distance, sackRun)
		b = binary.BigEndian.AppendUint16(b, uint16(run))
		distance -= run
	}
	for {
		if b = append(b, 0, 0); (len(b)-from)%4 == 0 {
			return b
		}
	}
}

// Trimmed reports whether the list is one of AppendTrimmed, and returns the distance of the packet
// that was trimmed. Such a list says nothing about other packets.
func (s Sack) Trimmed() (distance uint32, is bool) {
	for ; len(s) > 0; s = s[sackItems:] {
		switch item := uint32(binary.BigEndian.Uint16(s)); {
		case item == 0:
			return distance, true
		case item > sackRun:
			return 0, false
		default:
			distance += item
		}
	}
	return 0, false
}

// runOf returns how many of the lowest bits are equal.
func runOf(w uint64) uint32 {
	if w&1 != 0 {
		w = ^w
	}
	return uint32(bits.TrailingZeros64(w))
}

// All calls yield for each run of arrived packets, in order: n packets, the first at the given
// distance from the NAK's PSN.
func (s Sack) All(yield func(distance, n uint32) bool) {
	for at := uint32(1); len(s) > 0; s = s[sackItems:] {
		item := uint32(binary.BigEndian.Uint16(s))
		if item&sackBits == 0 {
			n := item & sackRun
			if item&sackKept != 0 && !yield(at, n) {
				return
			}
			at += n
			continue
		}
		for w := item &^ sackBits; w != 0; {
			from := uint32(bits.TrailingZeros32(w))
			n := uint32(bits.TrailingZeros32(^(w >> from)))
			if !yield(at+from, n) {
				return
			}
			w = w >> (from + n) << (from + n)
		}
		at += sackEach
	}
}

// Covered returns how many packets after the NAK's PSN the list covers. all: no later packet has
// arrived.
func (s Sack) Covered() (n uint32, all bool) {
	for ; len(s) > 0; s = s[sackItems:] {
		switch item := uint32(binary.BigEndian.Uint16(s)); {
		case item == 0:
			return n, true
		case item&sackBits != 0:
			n += sackEach
		default:
			n += item & sackRun
		}
	}
	return n, false
}

// valid reports whether the list is well-formed.
func (s Sack) valid() bool {
	if len(s) > MaxSackLen || len(s)%4 != 0 {
		return false
	}
	if n, _ := s.Covered(); n > MaxSackPackets {
		return false
	}
	ended := false
	for ; len(s) > 0; s = s[sackItems:] {
		item := binary.BigEndian.Uint16(s)
		if item == sackKept || ended && item != 0 {
			return false
		}
		ended = item == 0
	}
	return true
}

// sack reports whether an acknowledgement may have this payload. The QP checks the mark.
func (p *Packet) sack(payload []byte) bool {
	return (p.Opcode == RCAck || p.Opcode == Opcode(XRC)<<5|RCAck) && p.Reserved7 != 0 &&
		p.Pad == 0 && Sack(payload).valid()
}
