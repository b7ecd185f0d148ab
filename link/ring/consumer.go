package ring

import (
	"fmt"

	"github.com/softrnic/softrnic/link"
)

// Consumer takes frames out of a ring. Only one goroutine may use it at a time.
type Consumer struct {
	m        memory
	head     uint64 // index of the next record
	tail     uint64 // the producer's index as last read
	released uint64 // the value of head that was released to the producer
	next     header // header of the record at head, if has is true
	has      bool   // next is valid
	asleep   bool   // sleep has been called, and awake has not
	err      error  // wraps errCorrupt
}

// NewConsumer returns the consumer of a ring. The memory must be zeroed, or used by a producer
// only.
func NewConsumer(b []byte) (*Consumer, error) {
	m, err := newMemory(b)
	if err != nil {
		return nil, err
	}
	return &Consumer{m: m}, nil
}

// AllowInPlace tells the producer that it may send frames without an ICRC.
func (c *Consumer) AllowInPlace() { c.m.inPlace.Store(1) }

// Next returns the length of the next frame, or 0 if there is none.
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
	c.err = fmt.Errorf("%w: "+format, append([]any{errCorrupt}, args...)...)
	c.next = header{}
	return c.err
}

// HeaderLen returns the length of the next frame's headers, as the producer wrote it. It is 0 for a
// frame with an ICRC.
func (c *Consumer) HeaderLen() int {
	if !c.next.frame.NoICRC {
		return 0
	}
	return int(c.next.frame.HeaderLen)
}

// Take copies the next frame, which Next has found, into b, which must have room for it. The
// frame's fields are as the producer wrote them: the caller checks them with link.Frame.Validate.
func (c *Consumer) Take(b []byte) link.Frame { return c.take(b, c.next.length, nil) }

// TakeHeaders copies the first n bytes of the next frame, which Next has found, into b. The other
// bytes stay in the ring, as the frame's More, until Release. The producer can still change them.
// more is the storage of the frame's More.
func (c *Consumer) TakeHeaders(b []byte, n int, more *[1][]byte) link.Frame {
	return c.take(b, n, more)
}

func (c *Consumer) take(b []byte, n int, more *[1][]byte) link.Frame {
	f := c.next.frame
	f.Data = b[:n:n]
	begin := c.m.at(c.head) + headerLen
	at := c.m.records[begin : begin+uint64(c.next.length) : begin+uint64(c.next.length)]
	copy(f.Data, at)
	if more != nil {
		more[0] = at[n:]
		f.More = more[:]
	}
	c.head += c.next.size
	c.has, c.next = false, header{}
	return f
}

// Release returns the room of taken frames to the producer. It reports whether the producer sleeps
// and the caller must wake it.
func (c *Consumer) Release() (wake bool) {
	if c.released == c.head {
		return false
	}
	c.released = c.head
	c.m.head.Store(c.head)
	return c.m.producerAsleep.Load() != 0 && c.m.producerAsleep.Swap(0) != 0
}

// sleep is called before the consumer sleeps. It returns false if there is a frame to take, or an
// error that Next returns. After true, the producer's next Publish asks to wake the consumer.
func (c *Consumer) sleep() bool {
	c.m.consumerAsleep.Store(1)
	if c.m.tail.Load() != c.head || c.err != nil {
		c.m.consumerAsleep.Store(0)
		return false
	}
	c.asleep = true
	return true
}

// awake is called when the consumer is awake again, for any reason.
func (c *Consumer) awake() {
	if c.asleep {
		c.asleep = false
		c.m.consumerAsleep.Store(0)
	}
}
