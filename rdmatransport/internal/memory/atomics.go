package memory

import (
	"sync/atomic"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// Remote atomics are CPU atomics, so they are atomic to local code that uses sync/atomic too
// (IBV_ATOMIC_GLOB). The value in memory is in host byte order. The span must be Aligned. ok is
// false if the memory faults.

// Aligned reports whether a span is eight bytes at an address that is a multiple of 8, as atomics
// require.
func (s Span) Aligned() bool {
	if s.InBackend() {
		return s.n == 8 && s.off%8 == 0
	}
	return s.n == 8 && uintptr(s.p)%8 == 0
}

// CompareSwap stores swap if the span holds compare, and returns the previous value.
func (s Span) CompareSwap(compare, swap uint64) (orig uint64, ok bool) {
	return s.Update(func(v uint64) uint64 {
		if v == compare {
			return swap
		}
		return v
	})
}

// FetchAdd adds, modulo 2^64, and returns the previous value.
func (s Span) FetchAdd(add uint64) (orig uint64, ok bool) {
	return s.Update(func(v uint64) uint64 { return v + add })
}

// Update stores f of the span's value, and returns the previous value. f may run more than once.
func (s Span) Update(f func(uint64) uint64) (orig uint64, ok bool) {
	if s.InBackend() {
		return 0, false
	}
	if s.mayFault() {
		return updateGuarded(s.bytes(), f)
	}
	return update(s.bytes(), f), true
}

// Store stores v atomically.
func (s Span) Store(v uint64) (ok bool) {
	_, ok = s.Update(func(uint64) uint64 { return v })
	return ok
}

func updateGuarded(b []byte, f func(uint64) uint64) (orig uint64, ok bool) {
	defer verbs.EndGuard(verbs.BeginGuard(), &ok, b)
	return update(b, f), true
}

func update(b []byte, f func(uint64) uint64) (orig uint64) {
	p := (*uint64)(unsafe.Pointer(&b[:8][0]))
	for {
		v := atomic.LoadUint64(p)
		if next := f(v); next == v || atomic.CompareAndSwapUint64(p, v, next) {
			return v
		}
	}
}
