// Package ring is a queue of frames in memory that two processes share: one puts frames in, the other takes them out, and
// neither trusts the other.
//
// The memory is one page of indices, each in a cache line of its own, and the records behind it, a power of two bytes:
//
//	   0  tail            8 bytes, written by the producer: where the next record will begin
//	  64  consumer asleep 4 bytes: the consumer sets it before it sleeps, the producer clears it and wakes the consumer
//	 128  head            8 bytes, written by the consumer: where the oldest record begins
//	 192  producer asleep 4 bytes: the same the other way round, for a producer that waits for room
//	 256  in place        4 bytes, written by the consumer: not 0 if it takes frames without an ICRC, where they are
//	4096  records
//
// Indices count bytes from the beginning of time, so that tail-head is what is in use; a record at index i stands at i modulo
// the size of the records. Each begins at a multiple of 32, with a header of 32 bytes and the frame behind it, and does not wrap
// round: where one does not fit before the end, an empty record fills the rest. All is in the byte order of the machine:
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
// A frame is put in in one piece, or room is reserved for it and it is written there, by several goroutines at a time: the
// consumer sees it when it, and all that were reserved before it, are committed.
//
// Each side keeps its own index in its own memory and never reads it back. It reads the other's index once for each decision,
// and takes it for what it is only if it can be true: what cannot is [ErrCorrupt], after which the ring must be given up. A
// record's header is copied before it is looked at. Its frame is copied before anybody sees it, or, if the consumer asks for
// that, its headers are, and the rest is handed out where it is: whoever gets that must read each byte once, and believe
// nothing that a second look would have to confirm. Zeroed memory is an empty ring.
package ring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/softrnic/softrnic/link"
)

// Where things are in the memory.
const (
	tailAt           = 0
	consumerAsleepAt = 64
	headAt           = 128
	producerAsleepAt = 192
	inPlaceAt        = 256
	recordsAt        = 4096
)

// The records have MinLen to MaxLen bytes; the smallest ring holds two of the largest frames wherever they stand.
const (
	MinLen = 256 << 10
	MaxLen = 64 << 20
)

// MaxFrame is the length of the longest frame.
const MaxFrame = link.EthernetHeaderLen + 2*link.TagLen + link.MaxSuperframe

// Offloads are what frames in a ring may need: all there are, as they come as they were written.
var Offloads = link.Offloads{USO: true, TSO: true, Checksum: true}

// ErrCorrupt is what the error wraps that says that the other side does not keep to the rules.
var ErrCorrupt = errors.New("the ring is corrupt")

// MemoryLen is the length of the memory of a ring whose records have n bytes.
func MemoryLen(n int) int { return recordsAt + n }

// memory is a ring as one side sees it.
type memory struct {
	tail, head                              *atomic.Uint64
	consumerAsleep, producerAsleep, inPlace *atomic.Uint32
	records                                 []byte
}

func newMemory(b []byte) (m memory, err error) {
	n := len(b) - recordsAt
	if n < MinLen || n > MaxLen || n&(n-1) != 0 {
		return m, fmt.Errorf("memory of %d bytes for a ring: give %d and a power of two from %d to %d", len(b), recordsAt, MinLen, MaxLen)
	}
	base := unsafe.Pointer(unsafe.SliceData(b))
	if uintptr(base)%recordAlign != 0 {
		return m, fmt.Errorf("memory of a ring at %p: give a multiple of %d", base, recordAlign)
	}
	return memory{
		tail: (*atomic.Uint64)(unsafe.Add(base, tailAt)), head: (*atomic.Uint64)(unsafe.Add(base, headAt)),
		consumerAsleep: (*atomic.Uint32)(unsafe.Add(base, consumerAsleepAt)),
		producerAsleep: (*atomic.Uint32)(unsafe.Add(base, producerAsleepAt)),
		inPlace:        (*atomic.Uint32)(unsafe.Add(base, inPlaceAt)),
		records:        b[recordsAt:],
	}, nil
}

// at is where an index stands among the records.
func (m *memory) at(index uint64) uint64 { return index & uint64(len(m.records)-1) }

// left is how many bytes there are from an index to the end of the records.
func (m *memory) left(index uint64) uint64 { return uint64(len(m.records)) - m.at(index) }
