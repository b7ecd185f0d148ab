// Package crc computes CRC-32, which RoCE's ICRC is, and CRC-32C, which MPA's is, with the widest
// instructions that the processor has, also while it copies. Short input, and what the processor
// has no instructions for, is hash/crc32's.
//
// On amd64 with VPCLMULQDQ, 512 bits at a time with AVX-512 and 256 with AVX2 are folded into four
// accumulators side by side (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
// PCLMULQDQ Instruction", Intel 2009; hash/crc32 has one). On arm64, [Polynomial.Copy] uses the
// CRC32 instructions that hash/crc32 uses, while it copies.
package crc

import (
	"fmt"
	"hash/crc32"
	"os"
)

// Polynomial computes the CRCs of a polynomial.
type Polynomial struct {
	table *crc32.Table
	folds folds
}

// The polynomials. Bits are reversed, and the CRC is inverted before and after, as in hash/crc32.
var (
	IEEE       = newPolynomial(crc32.IEEE, crc32.IEEETable)
	Castagnoli = newPolynomial(crc32.Castagnoli, crc32.MakeTable(crc32.Castagnoli))
)

// Instructions is what the CRCs are computed with.
type Instructions uint8

const (
	Standard Instructions = iota // hash/crc32
	AVX2                         // 256 bits at a time
	AVX512                       // 512 bits at a time
	CRC32                        // arm64's, with the copy
)

var names = [...]string{Standard: "standard", AVX2: "avx2", AVX512: "avx512", CRC32: "crc32"}

// String is the name that the environment variable SOFTRNIC_CRC has for it.
func (i Instructions) String() string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("Instructions(%d)", uint8(i))
}

// inUse is what the package uses. It is set once, before main.
var inUse = choose(available(), os.Getenv("SOFTRNIC_CRC"))

// InUse is what the package uses: the best that the processor has, or what the environment variable
// SOFTRNIC_CRC names, if the processor has that.
func InUse() Instructions { return inUse }

// choose takes the last of those available, or the one that is named.
func choose(available []Instructions, name string) Instructions {
	for _, i := range available {
		if i.String() == name {
			return i
		}
	}
	return available[len(available)-1]
}

// Update is the CRC of b behind the bytes of crc, which is 0 at the beginning.
func (p *Polynomial) Update(crc uint32, b []byte) uint32 {
	crc, done := p.update(inUse, crc, b)
	if done == len(b) {
		return crc
	}
	return crc32.Update(crc, p.table, b[done:])
}

// Copy copies src to dst, which is at least as long, and returns Update of crc and src. What is
// copied, and what the CRC is of, are the same bytes, even if somebody changes src meanwhile. While
// it reads src, it prefetches what is ahead bytes further on, which may be no memory of the
// program; 0 prefetches nothing.
//
// dst and src must not overlap, but may be the same.
func (p *Polynomial) Copy(dst, src []byte, crc uint32, ahead int) uint32 {
	dst = dst[:len(src)]
	crc, done := p.copy(inUse, crc, dst, src, ahead)
	if done == len(src) {
		return crc
	}
	copy(dst[done:], src[done:])
	return crc32.Update(crc, p.table, dst[done:])
}
