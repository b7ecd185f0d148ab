//go:build !amd64 && !arm64

package crc

import "hash/crc32"

func available() []Instructions { return []Instructions{Standard} }

type folds struct{}

func newPolynomial(_ uint32, table func() *crc32.Table) *Polynomial { return &Polynomial{table: table} }

func (p *Polynomial) update(_ Instructions, crc uint32, _ []byte) (sum uint32, done int) {
	return crc, 0
}

func (p *Polynomial) copy(_ Instructions, crc uint32, _, _ []byte, _ int) (sum uint32, done int) {
	return crc, 0
}
