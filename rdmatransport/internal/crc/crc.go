// Package crc computes CRC-32, which RoCE uses for the ICRC, and CRC-32C, which MPA uses. It uses
// the widest instructions of the processor, and can compute a CRC while copying. It falls back to
// hash/crc32 for short input and on other processors.
//
// On amd64 with VPCLMULQDQ, it folds 512 bits at a time (AVX-512) or 256 (AVX2) into each of four
// parallel accumulators, where hash/crc32 has one accumulator. See Gopal et al., "Fast CRC
// Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009. On arm64,
// [Polynomial.Copy] uses the CRC32 instructions, like hash/crc32, while it copies.
package crc

import (
	"fmt"
	"hash/crc32"
	"os"
	"sync"
)

// Polynomial computes the CRCs of a polynomial.
type Polynomial struct {
	table func() *crc32.Table
	folds folds
}

// The polynomials. Bits are reversed, and the CRC is inverted before and after, as in hash/crc32.
var (
	IEEE       = newPolynomial(crc32.IEEE, func() *crc32.Table { return crc32.IEEETable })
	Castagnoli = newPolynomial(crc32.Castagnoli, castagnoliTable)
)

// castagnoliTable returns the table of CRC-32C, which hash/crc32 makes at the first call. That
// takes longer than the initialization of most packages, and many programs do without.
var castagnoliTable = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// Instructions is an instruction set for computing CRCs.
type Instructions uint8

const (
	Standard Instructions = iota // hash/crc32
	AVX2                         // 256 bits at a time
	AVX512                       // 512 bits at a time
	CRC32                        // arm64's CRC32 instructions, only in Copy
)

var names = [...]string{Standard: "standard", AVX2: "avx2", AVX512: "avx512", CRC32: "crc32"}

// String returns the name of i, as in the environment variable SOFTRNIC_CRC.
func (i Instructions) String() string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("Instructions(%d)", uint8(i))
}

// inUse is the instruction set in use: the one named by the environment variable SOFTRNIC_CRC if
// the processor has it, or else the processor's best.
var inUse = choose(available(), os.Getenv("SOFTRNIC_CRC"))

// choose returns the available instruction set with this name, or else the last one.
func choose(available []Instructions, name string) Instructions {
	for _, i := range available {
		if i.String() == name {
			return i
		}
	}
	return available[len(available)-1]
}

// Update returns the result of adding the bytes of b to crc. The initial crc is 0.
func (p *Polynomial) Update(crc uint32, b []byte) uint32 {
	crc, done := p.update(inUse, crc, b)
	if done == len(b) {
		return crc
	}
	return crc32.Update(crc, p.table(), b[done:])
}

// Copy copies src to dst, which is at least as long, and returns Update of crc and src. The CRC is
// that of the copied bytes, even if src changes concurrently. While it reads src, it prefetches the
// memory ahead bytes further on. That memory need not be mapped. If ahead is 0, nothing is
// prefetched.
//
// dst and src must not overlap, but may be the same.
func (p *Polynomial) Copy(dst, src []byte, crc uint32, ahead int) uint32 {
	dst = dst[:len(src)]
	crc, done := p.copy(inUse, crc, dst, src, ahead)
	if done == len(src) {
		return crc
	}
	copy(dst[done:], src[done:])
	return crc32.Update(crc, p.table(), dst[done:])
}
