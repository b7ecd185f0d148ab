package wire

import (
	"encoding/binary"
	"hash/fnv"
	"math/bits"
)

// Mark is what a SoftRNIC that keeps packets behind a gap puts into BTH.Reserved7 of every packet
// of a reliable connection: 1 to 127, or 0 for none. All others send the field as zero, and ignore
// it (IBTA Vol 1 §9.2).
//
// There is one for the requests of each direction, and their answers, which both sides know from
// the numbers of the two QPs and the first PSN of the requests. So packets that somebody makes who
// has not seen the connection's mostly have a wrong one. It is 7 bits and no more than a help:
// nothing in a RoCE packet proves who sent it, and the ICRC has no key.
type Mark uint8

// markVersion keeps the marks of versions apart: two that understand selective acknowledgements
// differently do not recognise each other. The one before had 0, and a bitmap.
const markVersion = 31

// MarkOf is the mark of the requests that QP requester sends to QP responder, from PSN first on,
// and of their answers.
func MarkOf(requester, responder, first uint32) Mark {
	h := fnv.New32a()
	var b [12]byte
	binary.BigEndian.PutUint32(b[:], requester)
	binary.BigEndian.PutUint32(b[4:], responder)
	binary.BigEndian.PutUint32(b[8:], first)
	h.Write(b[:])
	return 1 + Mark((uint64(h.Sum32())+markVersion)%127)
}

// Newest is the BTH.Reserved7 of an answer, and of a request packet behind whose PSNs none has been
// sent so far. On a path that keeps the order, what has come by then and claims to be from further
// on is not the peer's.
func (m Mark) Newest() uint8 { return uint8(m) }

// Again is the BTH.Reserved7 of a request packet that is sent once more, while others have been
// sent from behind it.
func (m Mark) Again() uint8 {
	if m == 0 {
		return 0
	}
	return uint8((m+62)%127 + 1)
}

const (
	// MaxSackLen is how many bytes a selective acknowledgement has at most, where the path MTU is
	// not less.
	MaxSackLen = 4096
	// maxSackTold is how many packets it tells of at most.
	maxSackTold = 1<<16 - 1
)

// Sack is the payload of a sequence NAK between two that mark their packets: which packets behind
// the expected one are there. It is a list of items of 16 bits, each about the packets behind those
// of the item before; the first begins with the PSN after the NAK's.
//
//	+---+---+---------------------------+
//	| 0 | k |             n             |  n packets, 1 to 16,383: k reports whether they are there
//	+---+---+---------------------------+
//	| 1 |             bits              |  15 packets, the first by the lowest bit: 1 is there
//	+---+-------------------------------+
//	|                 0                 |  the end: nothing behind is there
//	+-----------------------------------+
//
// The end is repeated where that makes the length a multiple of 4 bytes. A list without an end says
// nothing of what is behind it: there was no room for that.
type Sack []byte

const (
	sackBits  = 1 << 15 // an item of single packets
	sackKept  = 1 << 14 // of a run: they are there
	sackRun   = 1<<14 - 1
	sackEach  = 15 // packets of an item of single ones
	sackItems = 2  // bytes of an item
)

// AppendSack appends a selective acknowledgement to b, which has room for so many bytes, a multiple
// of 4. It tells of n packets, or of as many of the first as there is room for. kept has those from
// number i on, counted from 0: the lowest bit is i's; bits of packets n and later do not matter.
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

// runOf is how many of the lowest bits are the same.
func runOf(w uint64) uint32 {
	if w&1 != 0 {
		w = ^w
	}
	return uint32(bits.TrailingZeros64(w))
}

// All calls yield with what is there, in order: n packets, the first of which is so far from the
// NAK's PSN.
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

// Told is how many packets behind the NAK's PSN it tells of; all: none behind those is there.
func (s Sack) Told() (n uint32, all bool) {
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

// sound reports whether it is as it has to be.
func (s Sack) sound() bool {
	if len(s) > MaxSackLen || len(s)%4 != 0 {
		return false
	}
	if n, _ := s.Told(); n > maxSackTold {
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

// sack reports whether an acknowledgement may have this payload. Whether its mark is the
// connection's, the QP knows.
func (p *Packet) sack(payload []byte) bool {
	return (p.Opcode == RCAck || p.Opcode == Opcode(XRC)<<5|RCAck) && p.Reserved7 != 0 &&
		p.Pad == 0 && Sack(payload).sound()
}
