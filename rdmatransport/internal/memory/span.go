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
}

type kind uint8

const (
	plain  kind = iota
	mapped      // access may fault
	null        // b has the right length, but is not the region's memory
)

// zeros is the content of a null MR.
var zeros [64 << 10]byte

func spanOf(mr *verbs.MR, b []byte) Span {
	if registered(mr).BeginAccess() {
		return Span{b, mapped}
	}
	return Span{b, plain}
}

// Len returns the number of bytes.
func (s Span) Len() int { return len(s.b) }

// Part returns n bytes of the span, from byte off on.
func (s Span) Part(off, n int) Span { return Span{s.b[off : off+n], s.kind} }

// ahead is how many bytes ahead of a copy user memory is prefetched. It is seldom in the caches.
// These are the next bytes of a message that continues.
const ahead = 4 << 10

// Write copies src, of the span's length, into the span. It returns false if the memory faults; a
// part may then be written.
func (s Span) Write(src []byte) bool {
	if s.kind == null {
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
