package crc

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"testing"
)

var polynomials = map[string]*Polynomial{"IEEE": IEEE, "Castagnoli": Castagnoli}

// check compares each implementation that this processor has with hash/crc32.
func check(t *testing.T, src []byte, shift int, crc uint32) {
	t.Helper()
	const guard = 64
	room := make([]byte, guard+64+len(src)+guard)
	for name, p := range polynomials {
		want := crc32.Update(crc, p.table(), src)
		for _, with := range available() {
			got, done := p.update(with, crc, src)
			if got = crc32.Update(got, p.table(), src[done:]); got != want {
				t.Errorf("%s, %v, %d bytes: update is %#x, not %#x", name, with, len(src), got, want)
			}
			for i := range room {
				room[i] = 0xa5
			}
			dst := room[guard+shift:][:len(src)]
			got, done = p.copy(with, crc, dst, src, 1024)
			if !bytes.Equal(dst[:done], src[:done]) {
				t.Errorf("%s, %v, %d bytes: copied wrongly", name, with, len(src))
			}
			if got = crc32.Update(got, p.table(), src[done:]); got != want {
				t.Errorf("%s, %v, %d bytes: copy's CRC is %#x, not %#x", name, with, len(src), got, want)
			}
			clear(dst[:done])
			for i, v := range room {
				if v != 0xa5 && (i < guard+shift || i >= guard+shift+done) {
					t.Fatalf("%s, %v, %d bytes: byte %d next to the destination was written", name, with, len(src), i-guard-shift)
				}
			}
		}
		if got := p.Update(crc, src); got != want {
			t.Errorf("%s, %d bytes: Update is %#x, not %#x", name, len(src), got, want)
		}
		dst := make([]byte, len(src))
		if got := p.Copy(dst, src, crc, 0); got != want || !bytes.Equal(dst, src) {
			t.Errorf("%s, %d bytes: Copy is %#x, not %#x, or has copied wrongly", name, len(src), got, want)
		}
	}
}

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

// TestLengths checks CRCs that continue an earlier one, and Update and Copy at each length.
// TestEveryLength does neither.
func TestLengths(t *testing.T) {
	b := random(64<<10 + 64)
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 1100 {
		check(t, b[n%64:][:n], n*7%64, uint32(n)*0x9e3779b9)
	}
	for range 300 {
		n := r.IntN(64<<10 + 1)
		check(t, b[r.IntN(64):][:n], r.IntN(64), r.Uint32())
	}
	for at := range 64 {
		for _, n := range []int{128, 256, 1024, 4096} {
			check(t, b[at:][:n], (at*5+3)%64, 0)
		}
	}
}

// TestEveryLength checks every length to 64 KiB, with alignments of source and destination that
// change from one length to the next. In emulation, which is slow, it checks every 61st. Those have
// all remainders of a register and all alignments too.
func TestEveryLength(t *testing.T) {
	const longest, guard = 64 << 10, 64
	step := 1
	if testing.Short() {
		step = 61
	}
	b, room := random(longest+64), make([]byte, guard+64+longest+guard)
	fence := bytes.Repeat([]byte{0xa5}, guard)
	for name, p := range polynomials {
		for _, with := range available() {
			if _, done := p.copy(with, 0, room, b[:1024], 0); done == 0 {
				continue // hash/crc32 would be compared with itself
			}
			// By the source's alignment: the CRC of hash/crc32, and the bytes it covers.
			var want, upTo [64]uint32
			for n := 0; n <= longest; n += step {
				from, to := n%64, (n*37+n/64)%64
				want[from] = crc32.Update(want[from], p.table(), b[from:][upTo[from]:n])
				upTo[from] = uint32(n)
				src, dst := b[from:][:n], room[guard+to:][:n]
				before, after := room[to:][:guard], room[guard+to+n:][:guard]
				copy(before, fence)
				copy(after, fence)
				clear(dst)
				got, done := p.update(with, 0, src)
				if got = crc32.Update(got, p.table(), src[done:]); got != want[from] {
					t.Fatalf("%s, %v, %d bytes at %d: update is %#x, not %#x", name, with, n, from, got, want[from])
				}
				got, done = p.copy(with, 0, dst, src, 1024)
				if got = crc32.Update(got, p.table(), src[done:]); got != want[from] {
					t.Fatalf("%s, %v, %d bytes at %d: copy's CRC is %#x, not %#x", name, with, n, from, got, want[from])
				}
				if copy(dst[done:], src[done:]); !bytes.Equal(dst, src) {
					t.Fatalf("%s, %v, %d bytes at %d to %d: copied wrongly", name, with, n, from, to)
				}
				if !bytes.Equal(before, fence) || !bytes.Equal(after, fence) {
					t.Fatalf("%s, %v, %d bytes at %d to %d: bytes next to the destination were written", name, with, n, from, to)
				}
			}
		}
	}
}

func FuzzCRC(f *testing.F) {
	f.Add([]byte("123456789"), uint32(0), uint8(3), uint8(1))
	f.Add(random(1024), uint32(1), uint8(0), uint8(0))
	f.Add(random(517), ^uint32(0), uint8(63), uint8(62))
	f.Fuzz(func(t *testing.T, b []byte, crc uint32, from, to uint8) {
		room := make([]byte, 63+len(b))
		src := room[from%64:][:len(b)]
		copy(src, b)
		check(t, src, int(to%64), crc)
	})
}

// TestChoose checks that the best implementation is chosen, or the requested one if it is
// available.
func TestChoose(t *testing.T) {
	all := []Instructions{Standard, AVX2, AVX512}
	for name, want := range map[string]Instructions{"": AVX512, "avx2": AVX2, "standard": Standard, "crc32": AVX512} {
		if got := choose(all, name); got != want {
			t.Errorf("%q: %v, not %v", name, got, want)
		}
	}
}

// Benchmark works on memory that is not in the caches, as the user's memory is not when packets
// arrive.
func Benchmark(b *testing.B) {
	user := random(32 << 20)
	frame := make([]byte, 72<<10)
	for name, p := range polynomials {
		for _, size := range []int{1024, 4096} {
			pass := func(b *testing.B, f func(dst, src []byte)) {
				b.ReportAllocs()
				b.SetBytes(int64(size))
				at, slot := 0, 0
				for b.Loop() {
					f(frame[slot+12:][:size], user[at:at+size])
					if at += size; at+size > len(user) {
						at = 0
					}
					if slot += size + 16; slot > 60<<10 {
						slot = 0
					}
				}
			}
			for _, with := range available() {
				b.Run(fmt.Sprintf("%s/%d/%v/copy", name, size, with), func(b *testing.B) {
					pass(b, func(dst, src []byte) {
						if crc, done := p.copy(with, 0, dst, src, 4096); done == 0 {
							copy(dst, src)
							sum ^= crc32.Update(crc, p.table(), dst)
						}
					})
				})
				b.Run(fmt.Sprintf("%s/%d/%v/update", name, size, with), func(b *testing.B) {
					pass(b, func(dst, src []byte) {
						if crc, done := p.update(with, 0, dst); done == 0 {
							sum ^= crc32.Update(crc, p.table(), dst)
						}
					})
				})
			}
		}
	}
}

var sum uint32
