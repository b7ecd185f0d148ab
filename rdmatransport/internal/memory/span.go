package memory

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/crc"
	"github.com/softrnic/softrnic/rdmatransport/internal/prefetch"
	"github.com/softrnic/softrnic/verbs"
)

// Span is memory to which access was granted, and which is accessed now. It is valid while the QP's
// lock is held.
type Span struct {
	b    []byte
	kind kind
	back *backed // of kind inBackend
}

// backed is a part of a region with a backend.
type backed struct {
	h   verbs.QPHandle // the QP for which it is accessed; none on the direct path
	by  verbs.Placer
	mr  *verbs.MR
	off int64
	n   int
}

type kind uint8

const (
	plain     kind = iota
	mapped         // access may fault
	null           // b has the right length, but is not the region's memory
	inBackend      // b is nil
)

// zeros is the content of a null MR.
var zeros [64 << 10]byte

// spanOf returns the n bytes of a region at addr, which are accessed for a QP. ok is false if they
// are not in the region.
func spanOf(h verbs.QPHandle, by verbs.Placer, mr *verbs.MR, addr, n uint64) (s Span, ok bool) {
	b, ok := mr.Bytes(addr, n)
	if !ok {
		return spanInBackend(h, by, mr, addr, n)
	}
	if registered(mr).BeginAccess() {
		return Span{b: b, kind: mapped}, true
	}
	return Span{b: b, kind: plain}, true
}

func spanInBackend(h verbs.QPHandle, by verbs.Placer, mr *verbs.MR, addr, n uint64) (s Span, ok bool) {
	off, ok := registered(mr).Backed(addr, n)
	if !ok {
		return Span{}, false
	}
	return Span{kind: inBackend, back: &backed{h, by, mr, off, int(n)}}, true
}

// Inline returns inline data as a span.
func Inline(data []byte) Span { return Span{b: data, kind: plain} }

// Len returns the number of bytes.
func (s Span) Len() int {
	if s.kind == inBackend {
		return s.back.n
	}
	return len(s.b)
}

// Part returns n bytes of the span, from byte off on.
func (s Span) Part(off, n int) Span {
	if s.kind == inBackend {
		part := *s.back
		part.off, part.n = part.off+int64(off), n
		return Span{kind: inBackend, back: &part}
	}
	return Span{b: s.b[off : off+n], kind: s.kind}
}

// InBackend reports whether the memory is a backend's. It is then written by Write, and otherwise
// accessed by Fetch and Change.
func (s Span) InBackend() bool { return s.kind == inBackend }

// Fetch returns the memory of a backend as a span that can be read, for a response that has more
// bytes behind the span: see verbs.QPHandle.Fetch.
func (s Span) Fetch(more int) (Span, verbs.Fetched) {
	b, state := s.back.h.Fetch(s.back.mr, s.back.off, s.back.n, more)
	return Span{b: b, kind: plain}, state
}

// Change is Update for a word in a backend: see verbs.QPHandle.Update.
func (s Span) Change(f func(uint64) uint64) (orig uint64, state verbs.Fetched) {
	return s.back.h.Update(s.back.mr, s.back.off, f)
}

// ahead is how many bytes ahead of a copy user memory is prefetched. It is seldom in the caches.
// These are the next bytes of a message that continues.
const ahead = 4 << 10

// Write copies src, of the span's length, into the span. It returns false if the memory faults; a
// part may then be written. psn is the packet's, if there is one: if the memory is a backend's, a
// later error names it.
func (s Span) Write(src []byte, psn uint32) bool {
	switch s.kind {
	case null:
		return true
	case inBackend:
		if s.back.h == (verbs.QPHandle{}) {
			return false
		}
		s.back.h.Place(s.back.mr, s.back.off, src, s.back.by, psn)
		return true
	}
	prefetch.Write(s.b, ahead)
	if s.kind == mapped {
		return guardedCopy(s.b, src)
	}
	copy(s.b, src)
	return true
}

// Read copies the span to the beginning of dst, and adds the copy to the CRC-32 at sum, which may
// be nil. It returns false if the memory faults.
func (s Span) Read(dst []byte, sum *uint32) bool {
	switch {
	case s.kind == inBackend:
		return false
	case sum == nil && s.kind == mapped:
		prefetch.Read(s.b, ahead)
		return guardedCopy(dst, s.b)
	case sum == nil:
		prefetch.Read(s.b, ahead)
		copy(dst, s.b)
	case s.kind == mapped:
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
	case s.kind == inBackend || src.kind == inBackend:
		return false
	case s.kind == null:
	case s.kind == mapped || src.kind == mapped:
		return guardedCopy(s.b, src.b)
	default:
		copy(s.b, src.b)
	}
	return true
}

// Bytes returns the memory itself, to be read while the QP's lock is held, and under a guard
// (verbs.BeginGuard) if it may fault.
func (s Span) Bytes() (b []byte, mayFault bool) { return s.b, s.kind == mapped }
