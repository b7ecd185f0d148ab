// Package ring is a queue of frames in memory that two processes share: one puts frames in, the other takes them out, and
// neither trusts the other.
//
// The memory is one page of indices, each in a cache line of its own, and the records behind it, a power of two bytes:
//
//	   0  tail           8 bytes, written by the producer: where the next record will begin
//	  64  consumer asleep 4 bytes: the consumer sets it before it sleeps, the producer clears it and wakes the consumer
//	 128  head           8 bytes, written by the consumer: where the oldest record begins
//	 192  producer asleep 4 bytes: the same the other way round, for a producer that waits for room
//	4096  records
//
// Indices count bytes from the beginning of time, so that tail-head is what is in use; a record at index i stands at i modulo
// the size of the records. Each begins at a multiple of 32 with a header of 32 bytes, which never wraps round; its frame may.
// All is in the byte order of the machine:
//
//	 0  length of the frame   4 bytes
//	 4  segmentation          1 byte, a link.Segmentation
//	 5  flags                 1 byte: 1, the checksum is partial; 2, it is valid
//	 6  segment size          2 bytes
//	 8  header length         2 bytes
//	10  checksum start        2 bytes
//	12  checksum offset       2 bytes
//	14  zeros
//
// Each side keeps its own index in its own memory and never reads it back. It reads the other's index once for each decision,
// and takes it for what it is only if it can be true: what cannot is [ErrCorrupt], after which the ring must be given up. A
// record's header is copied before it is looked at, and its frame is copied before anybody sees it, each once. Zeroed memory
// is an empty ring.
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
	recordsAt        = 4096
)

// The records have MinLen to MaxLen bytes; the smallest ring holds three of the largest frames.
const (
	MinLen = 256 << 10
	MaxLen = 64 << 20
)

// MaxFrame is the length of the longest frame.
const MaxFrame = link.EthernetHeaderLen + 2*link.TagLen + link.MaxSuperframe

// ErrCorrupt is what the error wraps that says that the other side does not keep to the rules.
var ErrCorrupt = errors.New("the ring is corrupt")

// MemoryLen is the length of the memory of a ring whose records have n bytes.
func MemoryLen(n int) int { return recordsAt + n }

// memory is a ring as one side sees it.
type memory struct {
	tail, head                     *atomic.Uint64
	consumerAsleep, producerAsleep *atomic.Uint32
	records                        []byte
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
		records:        b[recordsAt:],
	}, nil
}

// at is where an index stands among the records.
func (m *memory) at(index uint64) int { return int(index & uint64(len(m.records)-1)) }

// write copies b to an index, and returns the index behind it.
func (m *memory) write(index uint64, b []byte) uint64 {
	n := copy(m.records[m.at(index):], b)
	copy(m.records, b[n:])
	return index + uint64(len(b))
}

// read copies from an index into b.
func (m *memory) read(index uint64, b []byte) {
	n := copy(b, m.records[m.at(index):])
	copy(b[n:], m.records)
}

// Producer puts frames into a ring. Only one goroutine may use it at a time.
type Producer struct {
	m    memory
	tail uint64 // behind the last record that was put
	head uint64 // as it was last read
	err  error  // wraps ErrCorrupt
}

// NewProducer makes the producer of a ring in memory that is all zeros, or that only a consumer has used.
func NewProducer(b []byte) (*Producer, error) {
	m, err := newMemory(b)
	if err != nil {
		return nil, err
	}
	return &Producer{m: m}, nil
}

// Put copies a frame into the ring, which the consumer sees after Publish; false if there is no room for it, or after an
// error. The frame is one that link.Frame.Validate has passed.
func (p *Producer) Put(f *link.Frame) (bool, error) {
	n := f.Len()
	if n > MaxFrame {
		return false, fmt.Errorf("frame of %d bytes, at most %d: %w", n, MaxFrame, link.ErrTooLong)
	}
	if ok, err := p.room(n); !ok {
		return false, err
	}
	h := encode(f, n)
	at := p.m.write(p.m.write(p.tail, h[:]), f.Data)
	for _, more := range f.More {
		at = p.m.write(at, more)
	}
	p.tail += recordLen(n)
	return true, nil
}

// room reports whether there is room for a frame of n bytes. It looks where the consumer is only if there was none when it
// last looked.
func (p *Producer) room(n int) (bool, error) {
	need, size := recordLen(n), uint64(len(p.m.records))
	if p.tail-p.head+need <= size {
		return p.err == nil, p.err
	}
	head := p.m.head.Load()
	if p.err == nil && (head-p.head > p.tail-p.head || head%recordAlign != 0) {
		p.err = fmt.Errorf("%w: the consumer is at %#x, and has %#x to %#x", ErrCorrupt, head, p.head, p.tail)
	}
	if p.err != nil {
		return false, p.err
	}
	p.head = head
	return p.tail-p.head+need <= size, nil
}

// Publish shows the consumer what was put; true if the consumer sleeps and the caller must wake it.
func (p *Producer) Publish() (wake bool) {
	p.m.tail.Store(p.tail)
	return p.m.consumerAsleep.Load() != 0 && p.m.consumerAsleep.Swap(0) != 0
}

// Sleep is called before the producer sleeps for want of room for a frame of n bytes: false if there is room by now. From now
// on the consumer wakes it after the next Release. What was put is published first.
func (p *Producer) Sleep(n int) (bool, error) {
	p.m.producerAsleep.Store(1)
	ok, err := p.room(n)
	if ok || err != nil {
		p.m.producerAsleep.Store(0)
		return false, err
	}
	return true, nil
}

// Consumer takes frames out of a ring. Only one goroutine may use it at a time.
type Consumer struct {
	m    memory
	head uint64 // where the next record begins
	tail uint64 // as it was last read
	next header // of the record at head, if there is one
	has  bool   // next is valid
	err  error  // wraps ErrCorrupt
}

// NewConsumer makes the consumer of a ring in memory that is all zeros, or that only a producer has used.
func NewConsumer(b []byte) (*Consumer, error) {
	m, err := newMemory(b)
	if err != nil {
		return nil, err
	}
	return &Consumer{m: m}, nil
}

// Next returns the length of the next frame; 0 if there is none.
func (c *Consumer) Next() (int, error) {
	if c.has || c.err != nil {
		return c.next.length, c.err
	}
	if c.head == c.tail {
		tail := c.m.tail.Load()
		if tail-c.head > uint64(len(c.m.records)) || tail%recordAlign != 0 {
			return 0, c.fail("the producer is at %#x, and the consumer at %#x of %#x bytes", tail, c.head, len(c.m.records))
		}
		c.tail = tail
		if c.head == c.tail {
			return 0, nil
		}
	}
	var h [headerLen]byte
	c.m.read(c.head, h[:])
	next := decode(&h)
	if next.length < link.EthernetHeaderLen || next.length > MaxFrame || recordLen(next.length) > c.tail-c.head {
		return 0, c.fail("a frame of %d bytes in %d", next.length, c.tail-c.head)
	}
	c.next, c.has = next, true
	return next.length, nil
}

func (c *Consumer) fail(format string, args ...any) error {
	c.err = fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
	c.next = header{}
	return c.err
}

// Take copies the next frame, which Next has found, into b, which has room for it. What the frame's fields say of its data
// is the producer's word: link.Frame.Validate is to be asked.
func (c *Consumer) Take(b []byte) link.Frame {
	n := c.next.length
	f := c.next.frame
	f.Data = b[:n:n]
	c.m.read(c.head+headerLen, f.Data)
	c.head += recordLen(n)
	c.has, c.next = false, header{}
	return f
}

// Release gives the room of what was taken back to the producer; true if the producer sleeps and the caller must wake it.
func (c *Consumer) Release() (wake bool) {
	c.m.head.Store(c.head)
	return c.m.producerAsleep.Load() != 0 && c.m.producerAsleep.Swap(0) != 0
}

// Sleep is called before the consumer sleeps: false if there is something to take by now, or an error to find out with Next.
// From now on the producer wakes it after the next Publish.
func (c *Consumer) Sleep() bool {
	c.m.consumerAsleep.Store(1)
	if c.m.tail.Load() != c.head || c.err != nil {
		c.m.consumerAsleep.Store(0)
		return false
	}
	return true
}

// Awake is called when the consumer was woken by something else than the producer.
func (c *Consumer) Awake() { c.m.consumerAsleep.Store(0) }
