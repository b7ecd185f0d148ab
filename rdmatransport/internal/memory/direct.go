package memory

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/verbs"
)

// What requests move where both ends are in this process, and the locks of both QPs are held. The key that they name, its
// rights and its range are checked already; own is what the scatter/gather list names. False means that the
// request has to go as packets, to fail in its own way.

// Write fills dst with a WRITE's data; it is not written to for a request that fails for its own list.
func Write(wr *verbs.SendWR, own Message, dst []byte) bool {
	if data := wr.Inline(); data != nil {
		copy(dst, data)
		return true
	}
	if len(own.List) > 1 && own.Regions.Check(uint64(len(dst)), own.PD, own.List, 0) != verbs.WCSuccess {
		return false
	}
	return own.Regions.Gather(dst, own.PD, own.List, 0) == verbs.WCSuccess
}

// Atomic carries an atomic out on a word, once it is sure that its result has a place.
func Atomic(wr *verbs.SendWR, own Message, word Span) bool {
	if _, plain := word.Ordinary(); !plain || own.Regions.Check(8, own.PD, own.List, verbs.AccessLocalWrite) != verbs.WCSuccess {
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
