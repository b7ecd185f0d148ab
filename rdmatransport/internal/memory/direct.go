package memory

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/verbs"
)

// These functions move messages directly, between two QPs of this process whose locks are both
// held. The key of the request, its access rights and its range were checked before. If they return
// false, the request must be sent as packets, and the responses report the error. This includes
// memory that faults, whose bytes before the fault are copied again, and memory of backends.

// Message is the memory of a scatter/gather list under a protection domain of one device.
type Message struct {
	Regions *Regions
	PD      *verbs.PD
	List    []verbs.SGE
	// SameDevice is set for the memory of a request whose remote memory is of the same device.
	SameDevice bool
}

// Copy copies n bytes of src, or of wr's inline data, from offset off on, to the same offset of
// dst, which may be on another device. If it returns false, parts of dst may be written.
func Copy(dst, src Message, wr *verbs.PostedSend, off, n uint64) bool {
	if data := wr.Inline(); data != nil {
		return dst.Regions.Scatter(data[off:off+n], dst.PD, dst.List, off) == verbs.WCSuccess
	}
	for end := off + n; off < end; {
		list, skip := src.List, off
		s, status := src.Regions.piece(src.PD, &list, &skip, end-off, 0, false)
		if status != verbs.WCSuccess {
			return false
		}
		if !scatter(dst, s, off, dst.Regions == src.Regions) {
			return false
		}
		off += uint64(s.n)
	}
	return true
}

// scatter copies src to dst, from offset off on. sameDevice: src is memory of dst's device.
func scatter(dst Message, src Span, off uint64, sameDevice bool) bool {
	for list, begun := dst.List, sameDevice && src.mayFault(); src.n > 0; begun = false {
		s, status := dst.Regions.piece(dst.PD, &list, &off, uint64(src.n), verbs.AccessLocalWrite, begun)
		if status != verbs.WCSuccess || !s.transfer(src.Part(0, s.n)) {
			return false
		}
		src = src.Part(s.n, src.n-s.n)
	}
	return true
}

// Read places src, the remote memory of a READ, in the request's own list, from offset off on.
func Read(own Message, src Span, off uint64) bool {
	return !src.InBackend() && scatter(own, src, off, own.SameDevice)
}

// Write fills dst with the data of a WRITE, from offset off on. Nothing is written if a key or a
// range in the request's own gather list is invalid.
func Write(wr *verbs.PostedSend, own Message, dst Span, off uint64) bool {
	if dst.InBackend() {
		return false
	}
	if data := wr.Inline(); data != nil {
		return dst.write(data[off : off+uint64(dst.n)])
	}
	if len(own.List) > 1 && own.Regions.check(uint64(dst.n), own.PD, own.List, off, 0, true) != verbs.WCSuccess {
		return false
	}
	for list, begun := own.List, own.SameDevice && dst.mayFault(); dst.n > 0; begun = false {
		s, status := own.Regions.piece(own.PD, &list, &off, uint64(dst.n), 0, begun)
		if status != verbs.WCSuccess || !dst.Part(0, s.n).transfer(s) {
			return false
		}
		dst = dst.Part(s.n, dst.n-s.n)
	}
	return true
}

// Sound reports whether n bytes of the data of a SEND or WRITE, from offset off on, are certainly
// readable. It is called before a receive request is taken from an SRQ.
func Sound(wr *verbs.PostedSend, own Message, off, n uint64) bool {
	return wr.Inline() != nil || own.Regions.Check(n, own.PD, own.List, off, 0) == verbs.WCSuccess
}

// Atomic executes an atomic on a word, if its result can certainly be placed, because it must not
// be executed twice.
func Atomic(wr *verbs.PostedSend, own Message, word Span) (ok bool) {
	if own.Regions.Check(8, own.PD, own.List, 0, verbs.AccessLocalWrite) != verbs.WCSuccess {
		return false
	}
	var found uint64
	if wr.Opcode == verbs.AtomicCmpAndSwp {
		found, ok = word.CompareSwap(wr.CompareAdd, wr.Swap)
	} else {
		found, ok = word.FetchAdd(wr.CompareAdd)
	}
	if !ok {
		return false
	}
	var value [8]byte
	binary.NativeEndian.PutUint64(value[:], found)
	_ = own.Regions.Scatter(value[:], own.PD, own.List, 0) // checked above
	return true
}
