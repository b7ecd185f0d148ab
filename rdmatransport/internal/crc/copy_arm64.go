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

func newPolynomial(reversed uint32, table func() *crc32.Table) *Polynomial {
	return &Polynomial{table: table, folds: folds{castagnoli: reversed == crc32.Castagnoli}}
}

// update does nothing: hash/crc32 uses the same instructions.
func (p *Polynomial) update(_ Instructions, crc uint32, _ []byte) (sum uint32, done int) {
	return crc, 0
}

// copyIEEE copies n bytes from src to dst, and returns the result of adding them to crc. It
// prefetches the memory ahead bytes further on. n is a multiple of 64 and at least 64. crc and the
// result are not inverted.
//
//go:noescape
func copyIEEE(dst, src *byte, n, ahead int, crc uint32) uint32

// copyCastagnoli is copyIEEE for the other polynomial.
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
