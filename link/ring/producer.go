package ring

import (
	"fmt"

	"github.com/softrnic/softrnic/link"
)

// Producer puts frames into a ring. Only one goroutine at a time may call its methods. Meanwhile
// others may write to the room that reserve has returned.
type Producer struct {
	m        memory
	next     uint64        // index after the last record that was put or reserved
	head     uint64        // the consumer's index as last read
	reserved []reservation // the first is not committed
	err      error         // wraps errCorrupt
}

// reservation is room for a frame that is being built.
type reservation struct {
	at, size  uint64
	committed bool
}

// NewProducer returns the producer of a ring. The memory must be zeroed, or used by a consumer
// only.
func NewProducer(b []byte) (*Producer, error) {
	m, err := newMemory(b)
	if err != nil {
		return nil, err
	}
	return &Producer{m: m}, nil
}

// InPlace reports whether the consumer takes frames without an ICRC and reads them in place.
func (p *Producer) InPlace() bool { return p.m.inPlace.Load() != 0 }

// HasRoom reports whether n bytes of the ring are free.
func (p *Producer) HasRoom(n int) bool {
	ok, _ := p.room(uint64(n))
	return ok
}

// Put copies a frame into the ring. Publish makes it visible to the consumer. Put returns false if
// there is no room, or after an error. The frame must have passed link.Frame.Validate.
func (p *Producer) Put(f *link.Frame) (bool, error) {
	n := f.Len()
	if n > MaxFrame {
		return false, fmt.Errorf("frame of %d bytes, at most %d: %w", n, MaxFrame, link.ErrTooLong)
	}
	at, ok, err := p.allocate(n)
	if !ok {
		return false, err
	}
	size := recordLen(n)
	p.putHeader(at, f, n, size)
	b := p.m.records[p.m.at(at)+headerLen:]
	b = b[copy(b, f.Data):]
	for _, more := range f.More {
		b = b[copy(b, more):]
	}
	if len(p.reserved) > 0 {
		p.reserved = append(p.reserved, reservation{at, size, true})
	}
	p.next = at + size
	return true, nil
}

// reserve reserves room for a frame of up to n bytes. The caller must call commit. room is nil if
// there is none, or after an error. Frames that are put or reserved later come after this one.
func (p *Producer) reserve(n int) (at uint64, room []byte) {
	at, ok, _ := p.allocate(n)
	if !ok {
		return 0, nil
	}
	size := recordLen(n)
	p.reserved = append(p.reserved, reservation{at: at, size: size})
	p.next = at + size
	begin := p.m.at(at) + headerLen
	return at, p.m.records[begin : begin+uint64(n) : begin+uint64(n)]
}

// commit makes a frame of the first n bytes of the room at an index, with the fields of f. If n is
// 0, the room stays unused.
func (p *Producer) commit(at uint64, f *link.Frame, n int) {
	i := 0
	for p.reserved[i].at != at {
		i++
	}
	r := &p.reserved[i]
	r.committed = true
	last := i == len(p.reserved)-1
	switch {
	case last && n == 0:
		p.next, p.reserved = at, p.reserved[:i]
	case last:
		r.size = recordLen(n)
		p.next = at + r.size
		fallthrough
	default:
		p.putHeader(at, f, n, r.size)
	}
	done := 0
	for done < len(p.reserved) && p.reserved[done].committed {
		done++
	}
	p.reserved = p.reserved[:copy(p.reserved, p.reserved[done:])]
}

// reservations returns the number of records from the first uncommitted reservation on.
func (p *Producer) reservations() int { return len(p.reserved) }

func (p *Producer) putHeader(at uint64, f *link.Frame, n int, size uint64) {
	h := encode(f, n, size)
	copy(p.m.records[p.m.at(at):], h[:])
}

// allocate finds the index for the record of a frame of n bytes. If the record does not fit before
// the end of the ring, an empty record fills the remainder.
func (p *Producer) allocate(n int) (at uint64, ok bool, err error) {
	need, left := recordLen(n), p.m.left(p.next)
	if need <= left {
		ok, err = p.room(need)
		return p.next, ok, err
	}
	if ok, err = p.room(left + need); !ok {
		return 0, false, err
	}
	p.putHeader(p.next, &link.Frame{}, 0, left)
	if len(p.reserved) > 0 {
		p.reserved = append(p.reserved, reservation{p.next, left, true})
	}
	p.next += left
	return p.next, true, nil
}

// room reports whether the ring has this many free bytes. It reads the consumer's index only if the
// last known value leaves too few.
func (p *Producer) room(need uint64) (bool, error) {
	size := uint64(len(p.m.records))
	if p.next-p.head+need <= size {
		return p.err == nil, p.err
	}
	head := p.m.head.Load()
	if p.err == nil && (head-p.head > p.published()-p.head || head%recordAlign != 0) {
		p.err = fmt.Errorf("%w: the consumer is at %#x, and has %#x to %#x", errCorrupt, head, p.head, p.published())
	}
	if p.err != nil {
		return false, p.err
	}
	p.head = head
	return p.next-p.head+need <= size, nil
}

// published returns the index up to which the consumer may read.
func (p *Producer) published() uint64 {
	if len(p.reserved) > 0 {
		return p.reserved[0].at
	}
	return p.next
}

// Publish makes committed frames visible to the consumer. It reports whether the consumer sleeps
// and the caller must wake it.
func (p *Producer) Publish() (wake bool) {
	p.m.tail.Store(p.published())
	return p.m.consumerAsleep.Load() != 0 && p.m.consumerAsleep.Swap(0) != 0
}

// sleep is called before the producer sleeps because there is no room for a frame of n bytes. It
// returns false if there is room now. After true, the consumer's next Release asks to wake the
// producer. Frames must be published first.
func (p *Producer) sleep(n int) (bool, error) {
	p.m.producerAsleep.Store(1)
	need := recordLen(n)
	if left := p.m.left(p.next); need > left {
		need += left
	}
	ok, err := p.room(need)
	if ok || err != nil {
		p.m.producerAsleep.Store(0)
		return false, err
	}
	return true, nil
}
