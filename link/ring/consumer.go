package ring

import (
	"fmt"

	"github.com/softrnic/softrnic/link"
)

// Consumer takes frames out of a ring. Only one goroutine may use it at a time.
type Consumer struct {
	m        memory
	head     uint64 // where the next record begins
	tail     uint64 // as it was last read
	released uint64 // what the producer was told of head
	next     header // of the record at head, if there is one
	has      bool   // next is valid
	asleep   bool   // Sleep was called, and Awake was not
	err      error  // wraps ErrCorrupt
}

// NewConsumer makes the consumer of a ring in memory that is all zeros, or that only a producer has used.
func NewConsumer(b []byte) (*Consumer, error) {
	m, err := newMemory(b)
	if err != nil {
		return nil, err
	}
	return &Consumer{m: m}, nil
}

// TakeInPlace tells the producer that frames without an ICRC are welcome.
func (c *Consumer) TakeInPlace() { c.m.inPlace.Store(1) }

// Next returns the length of the next frame; 0 if there is none.
func (c *Consumer) Next() (int, error) {
	if c.has || c.err != nil {
		return c.next.length, c.err
	}
	for {
		if c.head == c.tail {
			tail := c.m.tail.Load()
			if tail-c.head > uint64(len(c.m.records)) || tail-c.released > uint64(len(c.m.records)) || tail%recordAlign != 0 {
				return 0, c.fail("the producer is at %#x, and the consumer at %#x of %#x bytes", tail, c.head, len(c.m.records))
			}
			if c.tail = tail; c.head == tail {
				return 0, nil
			}
		}
		h := [headerLen]byte(c.m.records[c.m.at(c.head):])
		next := decode(&h)
		if next.size < headerLen || next.size%recordAlign != 0 || next.size > c.tail-c.head || next.size > c.m.left(c.head) {
			return 0, c.fail("a record of %d bytes in %d", next.size, min(c.tail-c.head, c.m.left(c.head)))
		}
		if next.length == 0 {
			c.head += next.size
			continue
		}
		if next.length < link.EthernetHeaderLen || next.length > MaxFrame || recordLen(next.length) > next.size {
			return 0, c.fail("a frame of %d bytes in a record of %d", next.length, next.size)
		}
		c.next, c.has = next, true
		return next.length, nil
	}
}

func (c *Consumer) fail(format string, args ...any) error {
	c.err = fmt.Errorf("%w: "+format, append([]any{ErrCorrupt}, args...)...)
	c.next = header{}
	return c.err
}

// HeaderLen is the number of bytes of headers of the next frame, as the producer says, if it has no ICRC; else 0.
func (c *Consumer) HeaderLen() int {
	if !c.next.frame.NoICRC {
		return 0
	}
	return int(c.next.frame.HeaderLen)
}

// Take copies the next frame, which Next has found, into b, which has room for it. What the frame's fields say of its data
// is the producer's word: link.Frame.Validate is to be asked.
func (c *Consumer) Take(b []byte) link.Frame { return c.take(b, c.next.length, nil) }

// TakeHeaders copies the first n bytes of the next frame, which Next has found, into b. The others are where they are, in
// the frame's More, for which rest has room, until Release: the producer can still change them.
func (c *Consumer) TakeHeaders(b []byte, n int, rest *[1][]byte) link.Frame {
	return c.take(b, n, rest)
}

func (c *Consumer) take(b []byte, n int, rest *[1][]byte) link.Frame {
	f := c.next.frame
	f.Data = b[:n:n]
	begin := c.m.at(c.head) + headerLen
	at := c.m.records[begin : begin+uint64(c.next.length) : begin+uint64(c.next.length)]
	copy(f.Data, at)
	if rest != nil {
		rest[0] = at[n:]
		f.More = rest[:]
	}
	c.head += c.next.size
	c.has, c.next = false, header{}
	return f
}

// Release gives the room of what was taken back to the producer; true if the producer sleeps and the caller must wake it.
func (c *Consumer) Release() (wake bool) {
	if c.released == c.head {
		return false
	}
	c.released = c.head
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
	c.asleep = true
	return true
}

// Awake is called when the consumer sleeps no longer, by whatever it was woken.
func (c *Consumer) Awake() {
	if c.asleep {
		c.asleep = false
		c.m.consumerAsleep.Store(0)
	}
}
