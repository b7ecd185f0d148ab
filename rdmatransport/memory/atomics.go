package memory

import (
	"sync/atomic"
	"unsafe"
)

// Remote atomics are the CPU's own, so they are atomic to local code that uses sync/atomic too (IBV_ATOMIC_GLOB). The
// value in memory is in host byte order.

// Aligned tells whether b is eight bytes that atomics work on: at an address that is a multiple of 8.
func Aligned(b []byte) bool {
	return len(b) == 8 && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 == 0
}

// CompareSwap stores swap in b if b holds compare, and returns what b held. b must be Aligned.
func CompareSwap(b []byte, compare, swap uint64) (orig uint64) {
	p := word(b)
	for {
		if v := atomic.LoadUint64(p); v != compare {
			return v
		}
		if atomic.CompareAndSwapUint64(p, compare, swap) {
			return compare
		}
	}
}

// FetchAdd adds to b, modulo 2^64, and returns what b held. b must be Aligned.
func FetchAdd(b []byte, add uint64) (orig uint64) { return atomic.AddUint64(word(b), add) - add }

// Update stores f of what b holds, and returns that. f may run more than once. b must be Aligned.
func Update(b []byte, f func(uint64) uint64) (orig uint64) {
	p := word(b)
	for {
		if v := atomic.LoadUint64(p); atomic.CompareAndSwapUint64(p, v, f(v)) {
			return v
		}
	}
}

func word(b []byte) *uint64 { return (*uint64)(unsafe.Pointer(&b[:8][0])) }
