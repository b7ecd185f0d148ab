package wire

import (
	"encoding/binary"
	"hash/fnv"
	"math/bits"
)

// Mark is what a SoftRNIC that keeps packets behind a gap puts into BTH.Reserved7 of every packet of a reliable connection:
// 1 to 127, or 0 for none. All others send the field as zero, and ignore it (IBTA Vol 1 §9.2).
//
// There is one for the requests of each direction, and their answers, which both sides know from the numbers of the two
// QPs and the first PSN of the requests. So packets that somebody makes who has not seen the connection's mostly have a
// wrong one. It is 7 bits and no more than a help: nothing in a RoCE packet proves who sent it, and the ICRC has no key.
type Mark uint8

// MarkOf is the mark of the requests that QP requester sends to QP responder, from PSN first on, and of their answers.
func MarkOf(requester, responder, first uint32) Mark {
	h := fnv.New32a()
	var b [12]byte
	binary.BigEndian.PutUint32(b[:], requester)
	binary.BigEndian.PutUint32(b[4:], responder)
	binary.BigEndian.PutUint32(b[8:], first)
	h.Write(b[:])
	return 1 + Mark(h.Sum32()%127)
}

// Newest is the BTH.Reserved7 of an answer, and of a request packet behind whose PSNs none has been sent so far. On a path
// that keeps the order, what has come by then and claims to be from further on is not the peer's.
func (m Mark) Newest() uint8 { return uint8(m) }

// Again is the BTH.Reserved7 of a request packet that is sent once more, while others have been sent from behind it.
func (m Mark) Again() uint8 {
	if m == 0 {
		return 0
	}
	return uint8((m+62)%127 + 1)
}

// MaxSackLen is the longest bitmap of a selective acknowledgement, in bytes.
const MaxSackLen = 1024

// Sack is the payload of a sequence NAK between two that mark their packets: which packets behind the expected one are
// there. Bit i, from the lowest of the first byte on, stands for the PSN i + 1 after the NAK's. Its length is a
// multiple of 8 bytes, at most MaxSackLen.
//
//	+-----+------+---------------------------------------+------+
//	| BTH | AETH | bitmap, 8 to MaxSackLen bytes         | ICRC |
//	+-----+------+---------------------------------------+------+
type Sack []byte

// Word is bits 64·i to 64·i + 63, the lowest first.
func (s Sack) Word(i int) uint64 { return binary.LittleEndian.Uint64(s[8*i:]) }

// PutWord is Word's inverse.
func (s Sack) PutWord(i int, w uint64) { binary.LittleEndian.PutUint64(s[8*i:], w) }

// All calls yield with the distance from the NAK's PSN of each packet that is there, in order.
func (s Sack) All(yield func(uint32) bool) {
	for i := range len(s) / 8 {
		for w := s.Word(i); w != 0; w &= w - 1 {
			if !yield(uint32(64*i+bits.TrailingZeros64(w)) + 1) {
				return
			}
		}
	}
}

// sack tells whether an acknowledgement may have this payload. Whether its mark is the connection's, the QP knows.
func (p *Packet) sack(payload []byte) bool {
	return (p.Opcode == RCAck || p.Opcode == Opcode(XRC)<<5|RCAck) && p.Reserved7 != 0 &&
		len(payload) <= MaxSackLen && len(payload)%8 == 0 && p.Pad == 0
}
