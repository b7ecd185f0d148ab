package wire

import (
	"encoding/binary"
	"math/bits"
)

// SelectiveMark is what a SoftRNIC that keeps packets behind a gap puts into BTH.Reserved7 of every packet of a reliable
// connection. The field is sent as zero by all others and looked at by none (IBTA Vol 1 §9.2), and it is under the
// ICRC, so that nobody on the way can make it. Several bits rather than one, for one may be given a meaning one day.
const SelectiveMark = 0x2d

// MaxSackLen is the longest bitmap of a selective acknowledgement, in bytes.
const MaxSackLen = 128

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

// sack tells whether an acknowledgement may have this payload.
func (p *Packet) sack(payload []byte) bool {
	return (p.Opcode == RCAck || p.Opcode == Opcode(XRC)<<5|RCAck) && p.Reserved7 == SelectiveMark &&
		len(payload) <= MaxSackLen && len(payload)%8 == 0 && p.Pad == 0
}
