package memory

import (
	"unsafe"

	"github.com/softrnic/softrnic/rdmatransport/internal/crc"
	"github.com/softrnic/softrnic/rdmatransport/internal/prefetch"
	"github.com/softrnic/softrnic/verbs"
)

// Span is memory to which access was granted, and which is accessed now. It is valid while the QP's
// lock is held. On 64-bit machines it has four words, which the compiler keeps in registers. It
// points to nothing that was allocated for it.
type Span struct {
	p    unsafe.Pointer // the first byte; in a backend the region, a *verbs.MR
	n    int            // bytes
	off  int64          // in a backend: where in the region
	kind kind
}

type kind uint

const (
	ordinary  kind = iota // it is accessed directly
	mapped                // access may fault
	null                  // there are bytes, but they are not the region's memory
	inBackend             // there are no bytes
)

// zeros is the content of a null MR.
var zeros [64 << 10]byte

func spanOf(mr *verbs.MR, b []byte) Span {
	if registered(mr).BeginAccess() {
		return bytesAs(b, mapped)
	}
	return bytesAs(b, ordinary)
}

func bytesAs(b []byte, k kind) Span {
	return Span{p: unsafe.Pointer(unsafe.SliceData(b)), n: len(b), kind: k}
}

// bytes returns the memory itself, if it is not a backend's.
func (s Span) bytes() []byte { return unsafe.Slice((*byte)(s.p), s.n) }

// mr returns the region, if the memory is a backend's.
func (s Span) mr() *verbs.MR { return (*verbs.MR)(s.p) }

// inBackendOf returns the n bytes at addr of a region that has no memory of its own there.
func inBackendOf(mr *verbs.MR, addr, n uint64) (Span, Denial) {
	off, ok := registered(mr).Backed(addr, n)
	if !ok {
		return Span{}, OutOfRange
	}
	return Span{unsafe.Pointer(mr), int(n), off, inBackend}, Allowed
}

// Len returns the number of bytes.
func (s Span) Len() int { return s.n }

// Part returns n bytes of the span, from byte off on.
func (s Span) Part(off, n int) Span {
	if s.InBackend() {
		return Span{s.p, n, s.off + int64(off), inBackend}
	}
	return bytesAs(s.bytes()[off:off+n], s.kind)
}

func (s Span) mayFault() bool { return s.kind == mapped }

// InBackend reports whether the memory is a backend's. It is then written by Write, and otherwise
// accessed by Fetch and Change.
func (s Span) InBackend() bool { return s.kind == inBackend }

// Fetch returns the memory of a backend as a span that can be read, for a response of h that has
// more bytes behind the span: see verbs.QPHandle.Fetch.
func (s Span) Fetch(h verbs.QPHandle, more int) (Span, verbs.Fetched) {
	b, state := h.Fetch(s.mr(), s.off, s.n, more)
	return bytesAs(b, ordinary), state
}

// Change starts an Update of h for a word in a backend: see verbs.QPHandle.Update.
func (s Span) Change(h verbs.QPHandle, u *verbs.Update, psn uint32) {
	h.Update(u, s.mr(), s.off, psn)
}

// ahead is how many bytes ahead of a copy user memory is prefetched. It is seldom in the caches.
// These are the next bytes of a message that continues.
const ahead = 4 << 10

// Write copies src, of the span's length, into the span. It returns false if the memory faults; a
// part may then be written. If the memory is a backend's, src is placed for a peer's request to h:
// see verbs.QPHandle.Place. psn is the packet's, if there is one, and a later error names it.
func (s Span) Write(src []byte, h verbs.QPHandle, psn uint32) bool {
	if s.kind > mapped {
		if s.kind == inBackend {
			h.Place(s.mr(), s.off, src, verbs.PlaceRemote, psn)
		}
		return true
	}
	return s.write(src)
}

// write is Write for memory that is not a backend's.
func (s Span) write(src []byte) bool {
	if s.kind == null {
		return true
	}
	b := s.bytes()
	prefetch.Write(b, ahead)
	if s.kind == mapped {
		return guardedCopy(b, src)
	}
	copy(b, src)
	return true
}

// Read copies the span to the beginning of dst, and adds the copy to the CRC-32 at sum, which may
// be nil. It returns false if the memory faults, or is a backend's.
func (s Span) Read(dst []byte, sum *uint32) bool {
	if s.InBackend() {
		return false
	}
	b := s.bytes()
	switch {
	case sum == nil && s.mayFault():
		prefetch.Read(b, ahead)
		return guardedCopy(dst, b)
	case sum == nil:
		prefetch.Read(b, ahead)
		copy(dst, b)
	case s.mayFault():
		return guardedSum(dst, b, sum)
	default:
		*sum = crc.IEEE.Copy(dst, b, *sum, ahead)
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
	case s.kind|src.kind == ordinary:
		copy(s.bytes(), src.bytes())
	case s.InBackend() || src.InBackend():
		return false
	case s.kind == null:
	case s.mayFault() || src.mayFault():
		return guardedCopy(s.bytes(), src.bytes())
	default:
		copy(s.bytes(), src.bytes())
	}
	return true
}

// Bytes returns the memory itself, to be read while the QP's lock is held, and under a guard
// (verbs.BeginGuard) if it may fault. A backend has none.
func (s Span) Bytes() (b []byte, mayFault bool) {
	if s.InBackend() {
		return nil, false
	}
	return s.bytes(), s.mayFault()
}
