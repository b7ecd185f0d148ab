package memory

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/verbs"
)

// What requests move where both ends are in this process and the locks of both QPs are held. The key that a request
// names, its rights and its range have been checked. False means that the request has to go as packets, which say what is
// wrong with it.

const (
	// HoldMost is how many bytes move between two QPs of this process before others may have their locks: a tenth of a
	// millisecond or two. It is a multiple of every path MTU.
	HoldMost = 1 << 20
	// HoldLeast is what a message counts for in that sum, however short it is.
	HoldLeast = 1 << 10
)

// Message is the memory that a scatter/gather list names under a protection domain of one device.
type Message struct {
	Regions *Regions
	PD      *verbs.PD
	List    []verbs.SGE
}

// Copy copies n bytes from offset off on of what src names, or of a request's inline data, to the same place of dst, which may
// be on another device. If false, some of dst may be written.
func Copy(dst, src Message, wr *verbs.SendWR, off, n uint64) bool {
	if data := wr.Inline(); data != nil {
		return dst.Regions.Scatter(data[off:off+n], dst.PD, dst.List, off) == verbs.WCSuccess
	}
	for end := off + n; off < end; {
		list, skip := src.List, off
		s, status := src.Regions.piece(src.PD, &list, &skip, end-off, 0)
		if status != verbs.WCSuccess {
			return false
		}
		b, there := s.Bytes()
		if !there || dst.Regions.Scatter(b, dst.PD, dst.List, off) != verbs.WCSuccess {
			return false
		}
		off += uint64(len(b))
	}
	return true
}

// Write fills dst with a WRITE's data from offset off on; it is not written to for a request that fails for its own list.
func Write(wr *verbs.SendWR, own Message, dst []byte, off uint64) bool {
	if data := wr.Inline(); data != nil {
		copy(dst, data[off:])
		return true
	}
	if len(own.List) > 1 && !Sound(wr, own, off, uint64(len(dst))) {
		return false
	}
	return own.Regions.Gather(dst, own.PD, own.List, off) == verbs.WCSuccess
}

// Sound tells whether n bytes of a SEND's or WRITE's data from offset off on are there, in memory that does not fault. It is
// asked before a receive request is taken from an SRQ for them.
func Sound(wr *verbs.SendWR, own Message, off, n uint64) bool {
	return wr.Inline() != nil || own.Regions.Check(n, own.PD, own.List, off, 0) == verbs.WCSuccess
}

// Atomic carries an atomic out on a word, once it is sure that its result has a place.
func Atomic(wr *verbs.SendWR, own Message, word Span) bool {
	if _, plain := word.Ordinary(); !plain || own.Regions.Check(8, own.PD, own.List, 0, verbs.AccessLocalWrite) != verbs.WCSuccess {
		return false
	}
	var found uint64
	if wr.Opcode == verbs.AtomicCmpAndSwp {
		found, _ = word.CompareSwap(wr.CompareAdd, wr.Swap)
	} else {
		found, _ = word.FetchAdd(wr.CompareAdd)
	}
	var value [8]byte
	binary.NativeEndian.PutUint64(value[:], found)
	_ = own.Regions.Scatter(value[:], own.PD, own.List, 0) // checked above
	return true
}
