package crc

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

func available() []Instructions {
	if cpu.ARM64.HasCRC32 {
		return []Instructions{Standard, CRC32}
	}
	return []Instructions{Standard}
}

type folds struct{ castagnoli bool }

func newPolynomial(reversed uint32, table *crc32.Table) *Polynomial {
	return &Polynomial{table: table, folds: folds{castagnoli: reversed == crc32.Castagnoli}}
}

// update leaves it to hash/crc32, which uses the same instructions.
func (p *Polynomial) update(_ Instructions, crc uint32, _ []byte) (sum uint32, done int) {
	return crc, 0
}

// copyIEEE is the CRC of n bytes at src behind those of crc, which it copies to dst. It prefetches
// what is ahead bytes behind. n is a multiple of 64 and at least 64. crc and the result are not
// inverted.
//
//go:noescape
func copyIEEE(dst, src *byte, n, ahead int, crc uint32) uint32

// copyCastagnoli is copyIEEE of the other polynomial.
//
//go:noescape
func copyCastagnoli(dst, src *byte, n, ahead int, crc uint32) uint32

func (p *Polynomial) copy(with Instructions, crc uint32, dst, src []byte, ahead int) (sum uint32, done int) {
	if with != CRC32 || len(src) < 64 {
		return crc, 0
	}
	done = len(src) &^ 63
	if p.folds.castagnoli {
		return ^copyCastagnoli(&dst[0], &src[0], done, ahead, ^crc), done
	}
	return ^copyIEEE(&dst[0], &src[0], done, ahead, ^crc), done
}
