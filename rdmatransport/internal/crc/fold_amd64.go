package crc

import (
	"hash/crc32"
	"math/bits"

	"golang.org/x/sys/cpu"
)

//go:generate go run -C asm . -out ../fold_amd64.s -stubs ../stub_amd64.go -pkg crc

// available returns the instruction sets of this processor, best last.
func available() []Instructions {
	all := []Instructions{Standard}
	if x := &cpu.X86; x.HasAVX2 && x.HasPCLMULQDQ && x.HasSSE42 && hasVPCLMULQDQ() {
		all = append(all, AVX2)
		if x.HasAVX512F {
			all = append(all, AVX512)
		}
	}
	return all
}

// constants holds the multipliers of the assembly, in its order (asm/main.go).
type constants = [46]uint64

// folds holds the constants for registers of 256 and of 512 bits.
type folds struct{ ymm, zmm constants }

func newPolynomial(reversed uint32, table func() *crc32.Table) *Polynomial {
	return &Polynomial{table: table, folds: folds{ymm: constantsOf(reversed, 32), zmm: constantsOf(reversed, 64)}}
}

func constantsOf(reversed uint32, width int) (k constants) {
	const registers = 4
	for i := range registers {
		lo, hi := distance(reversed, (registers-i)*width)
		for lane := range 4 {
			k[8*i+2*lane], k[8*i+2*lane+1] = lo, hi
		}
	}
	for lane := range width/16 - 1 {
		k[32+2*lane], k[32+2*lane+1] = distance(reversed, width-16*(lane+1))
	}
	k[40], k[41], k[42], k[43], k[44] = power(reversed, 96), power(reversed, 64), uint64(reversed)<<1|1, inverse(reversed), 1<<32-1
	if reversed == crc32.Castagnoli {
		k[45] = 1
	}
	return k
}

// distance returns the multipliers that advance the two halves of 16 bytes by some bytes.
func distance(reversed uint32, bytes int) (lo, hi uint64) {
	return power(reversed, 8*bytes+32), power(reversed, 8*bytes-32)
}

// power returns x^n modulo the polynomial, with its bits reversed. It is shifted by one, because a
// product of reversed numbers is one bit short.
func power(reversed uint32, n int) uint64 {
	p, v := bits.Reverse32(reversed), uint32(1)
	for range n {
		top := v >> 31
		v <<= 1
		if top != 0 {
			v ^= p
		}
	}
	return uint64(bits.Reverse32(v)) << 1
}

// inverse returns x^64 divided by the polynomial: 33 bits, reversed.
func inverse(reversed uint32) uint64 {
	p := uint64(bits.Reverse32(reversed)) // without x^32
	quotient, rest := uint64(1)<<32, p<<32
	for i := 31; i >= 0; i-- {
		if rest>>(32+i)&1 != 0 {
			quotient |= 1 << i
			rest ^= (1<<32 | p) << i
		}
	}
	return bits.Reverse64(quotient) >> 31
}

// update is Update for the leading bytes that fill whole registers.
func (p *Polynomial) update(with Instructions, crc uint32, b []byte) (sum uint32, done int) {
	switch {
	case with == AVX512 && len(b) >= 4*64:
		done = len(b) &^ 63
		return ^update512(&p.folds.zmm, &b[0], done, ^crc), done
	case with >= AVX2 && len(b) >= 4*32:
		done = len(b) &^ 31
		return ^update256(&p.folds.ymm, &b[0], done, ^crc), done
	}
	return crc, 0
}

// copy is Copy for the leading bytes that fill whole registers.
func (p *Polynomial) copy(with Instructions, crc uint32, dst, src []byte, ahead int) (sum uint32, done int) {
	switch {
	case with == AVX512 && len(src) >= 4*64:
		done = len(src) &^ 63
		return ^copy512(&p.folds.zmm, &dst[0], &src[0], done, ahead, ^crc), done
	case with >= AVX2 && len(src) >= 4*32:
		done = len(src) &^ 31
		return ^copy256(&p.folds.ymm, &dst[0], &src[0], done, ahead, ^crc), done
	}
	return crc, 0
}
