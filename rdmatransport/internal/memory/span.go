package memory

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/crc"
	"github.com/softrnic/softrnic/rdmatransport/internal/prefetch"
	"github.com/softrnic/softrnic/verbs"
)

// Span is memory to which access was granted, and which is accessed now. It is valid while the QP's
// lock is held.
type Span struct {
	b   []byte
	how *how // nil: it is accessed directly
}

// how says how memory is accessed.
type how struct {
	kind kind
	// A part of a region with a backend:
	h   verbs.QPHandle // the QP for which it is accessed; none on the direct path
	mr  *verbs.MR
	off int64
	n   int
}

type kind uint8

const (
	mapped    kind = iota // access may fault
	null                  // b has the right length, but is not the region's memory
	inBackend             // b is nil
)

var asMapped, asNull = &how{kind: mapped}, &how{kind: null}

// zeros is the content of a null MR.
var zeros [64 << 10]byte

func spanOf(mr *verbs.MR, b []byte) Span {
	if registered(mr).BeginAccess() {
		return Span{b, asMapped}
	}
	return Span{b, nil}
}

// inBackendOf returns the n bytes at addr of a region that has no memory of its own there.
func inBackendOf(mr *verbs.MR, h verbs.QPHandle, addr, n uint64) (Span, Denial) {
	off, ok := registered(mr).Backed(addr, n)
	if !ok {
		return Span{}, OutOfRange
	}
	return Span{nil, &how{inBackend, h, mr, off, int(n)}}, Allowed
}

// Len returns the number of bytes.
func (s Span) Len() int {
	if s.InBackend() {
		return s.how.n
	}
	return len(s.b)
}

// Part returns n bytes of the span, from byte off on.
func (s Span) Part(off, n int) Span {
	if s.how != nil {
		return s.partElsewhere(off, n)
	}
	return Span{b: s.b[off : off+n]}
}

// partElsewhere is Part if the memory is not accessed directly.
func (s Span) partElsewhere(off, n int) Span {
	if !s.InBackend() {
		return Span{s.b[off : off+n], s.how}
	}
	part := *s.how
	part.off, part.n = part.off+int64(off), n
	return Span{nil, &part}
}

func (s Span) mayFault() bool { return s.how == asMapped }

// InBackend reports whether the memory is a backend's. It is then written by Write, and otherwise
// accessed by Fetch and Change.
func (s Span) InBackend() bool { return s.how != nil && s.how.kind == inBackend }

// Fetch returns the memory of a backend as a span that can be read, for a response that has more
// bytes behind the span: see verbs.QPHandle.Fetch.
func (s Span) Fetch(more int) (Span, verbs.Fetched) {
	b, state := s.how.h.Fetch(s.how.mr, s.how.off, s.how.n, more)
	return Span{b, nil}, state
}

// Change starts Update for a word in a backend: see verbs.QPHandle.Update.
func (s Span) Change(f func(uint64) uint64, psn uint32) *verbs.Update {
	return s.how.h.Update(s.how.mr, s.how.off, f, psn)
}

// ahead is how many bytes ahead of a copy user memory is prefetched. It is seldom in the caches.
// These are the next bytes of a message that continues.
const ahead = 4 << 10

// Write copies src, of the span's length, into the span. It returns false if the memory faults; a
// part may then be written. psn is the packet's, if there is one: if the memory is a backend's, a
// later error names it.
func (s Span) Write(src []byte, psn uint32) bool {
	if s.how != nil && s.how.kind != mapped {
		return s.writeElsewhere(src, psn)
	}
	prefetch.Write(s.b, ahead)
	if s.how != nil {
		return guardedCopy(s.b, src)
	}
	copy(s.b, src)
	return true
}

// writeElsewhere is Write if b is not the region's memory.
func (s Span) writeElsewhere(src []byte, psn uint32) bool {
	switch {
	case s.how.kind == null:
	case s.how.h == (verbs.QPHandle{}):
		return false
	default:
		s.how.h.Place(s.how.mr, s.how.off, src, verbs.PlaceRemote, psn)
	}
	return true
}

// Read copies the span to the beginning of dst, and adds the copy to the CRC-32 at sum, which may
// be nil. It returns false if the memory faults, or is a backend's.
func (s Span) Read(dst []byte, sum *uint32) bool {
	switch {
	case s.InBackend():
		return false
	case sum == nil && s.mayFault():
		prefetch.Read(s.b, ahead)
		return guardedCopy(dst, s.b)
	case sum == nil:
		prefetch.Read(s.b, ahead)
		copy(dst, s.b)
	case s.mayFault():
		return guardedSum(dst, s.b, sum)
	default:
		*sum = crc.IEEE.Copy(dst, s.b, *sum, ahead)
	}
	return true
}

// guardedCopy copies src to dst, either of which may fault.
func guardedCopy(dst, src []byte) (ok bool) {
	defer verbs.EndGuard(verbs.BeginGuard(), &ok, dst, src)
	copy(dst, src)
	return true
}

func guardedSum(dst, src []byte, sum *uint32) (ok bool) {
	defer verbs.EndGuard(verbs.BeginGuard(), &ok, src)
	*sum = crc.IEEE.Copy(dst, src, *sum, ahead)
	return true
}

// transfer copies src, of the same length, into the span. It returns false if the memory of either
// faults; a part may then be written.
func (s Span) transfer(src Span) bool {
	switch {
	case s.how == nil && src.how == nil:
		copy(s.b, src.b)
	case s.InBackend() || src.InBackend():
		return false
	case s.how == asNull:
	case s.mayFault() || src.mayFault():
		return guardedCopy(s.b, src.b)
	default:
		copy(s.b, src.b)
	}
	return true
}

// Bytes returns the memory itself, to be read while the QP's lock is held, and under a guard
// (verbs.BeginGuard) if it may fault.
func (s Span) Bytes() (b []byte, mayFault bool) { return s.b, s.mayFault() }
