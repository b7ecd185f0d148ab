// Package ring is a queue of frames in memory that two processes share. The producer puts frames
// in, and the consumer takes them out. Neither trusts the other.
//
// The memory begins with a page of indices and flags, each in its own cache line. The records
// follow. Their size is a power of two:
//
//	   0  tail             8 bytes, written by the producer: index of the next record to be written
//	  64  consumer asleep  4 bytes: set by the consumer before it sleeps, cleared by the producer,
//	                       which then wakes the consumer
//	 128  head             8 bytes, written by the consumer: index of the oldest record
//	 192  producer asleep  4 bytes: the same for a producer that waits for room
//	 256  in place         4 bytes, written by the consumer: 1 if it takes frames without an ICRC and
//	                       reads them in place
//	4096  records
//
// Indices count bytes since the ring's creation and never wrap, so tail-head is the number of bytes
// in use. The record with index i is at i modulo the size of the records. A record begins at a
// multiple of 32, with a header of 32 bytes and the frame after it. It does not wrap around: where
// it would, an empty record fills the remainder. Numbers are in the machine's byte order:
//
//	 0  length of the frame   4 bytes; 0: the record is empty, and to be skipped
//	 4  segmentation          1 byte, a link.Segmentation
//	 5  flags                 1 byte: 1, the checksum is partial; 2, it is valid; 4, there is no ICRC
//	 6  segment size          2 bytes
//	 8  header length         2 bytes
//	10  checksum start        2 bytes
//	12  checksum offset       2 bytes
//	14  zeros                 2 bytes
//	16  size of the record    4 bytes, header included, a multiple of 32
//	20  zeros
//
// A frame is copied in at once, or room is reserved and the frame is built there. Several
// goroutines may build frames at the same time. The consumer sees a frame when it and all earlier
// reservations are committed.
//
// Each side keeps its own index in private memory and never reads it back. It reads the peer's
// index once per decision and checks that the value is possible. An impossible value is
// an error, and the ring must be abandoned. A record's header is copied before it is examined.
// The frame is copied before it is examined. If the consumer asks for frames in place, only the
// headers are copied. The reader of the remainder must read each byte at most once, because a
// second read may return another value. Zeroed memory is an empty ring.
//
// This package is for SoftRNIC's own packages, and its API may change in any version.
package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/softrnic/softrnic/link"
)

// Offsets in the memory.
const (
	tailAt           = 0
	consumerAsleepAt = 64
	headAt           = 128
	producerAsleepAt = 192
	inPlaceAt        = 256
	recordsAt        = 4096
)

// The records have MinLen to MaxLen bytes. The smallest ring holds two of the longest frames at any
// position.
const (
	MinLen = 256 << 10
	MaxLen = 64 << 20
)

// MaxFrame is the length of the longest frame.
const MaxFrame = link.EthernetHeaderLen + 2*link.TagLen + link.MaxSuperframe

// Offloads are the offloads that a link on a ring has: all of them, because frames are not
// converted.
var Offloads = link.Offloads{USO: true, TSO: true, Checksum: true}

// errCorrupt is wrapped by an error if the peer has violated the protocol.
var errCorrupt = errors.New("the ring is corrupt")

// MemoryLen returns the length of a ring's memory whose records have n bytes.
func MemoryLen(n int) int { return recordsAt + n }

// memory is one side's view of a ring.
type memory struct {
	tail, head                              *atomic.Uint64
	consumerAsleep, producerAsleep, inPlace *atomic.Uint32
	records                                 []byte
}

func newMemory(b []byte) (m memory, err error) {
	n := len(b) - recordsAt
	if n < MinLen || n > MaxLen || n&(n-1) != 0 {
		return m, fmt.Errorf("ring memory has %d bytes: want %d plus a power of two from %d to %d", len(b), recordsAt, MinLen, MaxLen)
	}
	base := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(base)%recordAlign != 0 {
		return m, fmt.Errorf("ring memory is at %p: want a multiple of %d", base, recordAlign)
	}
	return memory{
		tail: (*atomic.Uint64)(unsafe.Add(base, tailAt)), head: (*atomic.Uint64)(unsafe.Add(base, headAt)),
		consumerAsleep: (*atomic.Uint32)(unsafe.Add(base, consumerAsleepAt)),
		producerAsleep: (*atomic.Uint32)(unsafe.Add(base, producerAsleepAt)),
		inPlace:        (*atomic.Uint32)(unsafe.Add(base, inPlaceAt)),
		records:        b[recordsAt:],
	}, nil
}

// at returns the position of an index among the records.
func (m *memory) at(index uint64) uint64 { return index & uint64(len(m.records)-1) }

// left returns the number of bytes from an index to the end of the records.
func (m *memory) left(index uint64) uint64 { return uint64(len(m.records)) - m.at(index) }
