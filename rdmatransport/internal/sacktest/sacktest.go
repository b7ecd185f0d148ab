// Package sacktest converts selective acknowledgements for tests: from and to distances from the
// missing packet.
package sacktest

import (
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// Of returns a selective acknowledgement of packets at these distances only.
func Of(distances ...uint32) wire.Sack {
	n := uint32(0)
	if len(distances) > 0 {
		n = slices.Max(distances)
	}
	kept := make([]uint64, n/64+2)
	for _, d := range distances {
		kept[(d-1)/64] |= 1 << ((d - 1) % 64)
	}
	return wire.AppendSack(nil, wire.MaxSackLen, n, func(i uint32) uint64 {
		return kept[i/64]>>(i%64) | kept[i/64+1]<<(64-i%64)
	})
}

// Distances is the inverse of Of.
func Distances(s wire.Sack) (all []uint32) {
	for d, n := range s.All {
		for i := range n {
			all = append(all, d+i)
		}
	}
	return all
}
