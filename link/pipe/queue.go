package pipe

import (
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
)

// A port holds at most queueFrames frames and queueBytes bytes that its host has not taken; more are dropped, as a
// switch does. Its host gets up to batchFrames at a time.
const (
	queueFrames = 4096
	queueBytes  = 64 << 20
	batchFrames = 64
)

// queue is what waits for a port's host. Frames are dropped until it is open, and after it is closed.
type queue struct {
	dropped atomic.Uint64

	mu      sync.Mutex
	wake    sync.Cond // a frame has come while waiting is set, or the queue was closed
	ring    []*held   // count frames from head on; its length is a power of two and grows to queueFrames
	head    int
	count   int
	bytes   int
	waiting bool
	state   queueState
}

type queueState uint8

const (
	unopened queueState = iota
	opened
	closed
)

// open lets frames in unless the queue is closed, and returns what it was.
func (q *queue) open() (was queueState) {
	q.mu.Lock()
	defer q.mu.Unlock()
	was = q.state
	if was == unopened {
		q.state = opened
	}
	return was
}

// close drops what waits and ends take; false if the queue was never opened.
func (q *queue) close() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.state
	q.state = closed
	q.ring, q.count, q.bytes = nil, 0, 0
	q.wake.Signal()
	return was == opened
}

// put adds a copy of f, or drops it. The copy is made outside the lock.
func (q *queue) put(s *Switch, f *link.Frame) {
	h := s.hold(f)
	n := len(h.f.Data)
	q.mu.Lock()
	full := q.count == queueFrames || q.bytes+n > queueBytes
	if full || q.state != opened {
		q.mu.Unlock()
		h.pool.Put(h)
		if full {
			q.dropped.Add(1)
		}
		return
	}
	if q.count == len(q.ring) {
		q.grow()
	}
	q.ring[(q.head+q.count)&(len(q.ring)-1)] = h
	q.count++
	q.bytes += n
	wake := q.waiting
	q.waiting = false
	q.mu.Unlock()
	if wake {
		q.wake.Signal()
	}
}

// grow must be called with q.mu held and the ring full.
func (q *queue) grow() {
	ring := make([]*held, max(2*len(q.ring), batchFrames))
	n := copy(ring, q.ring[q.head:])
	copy(ring[n:], q.ring[:q.head])
	q.ring, q.head = ring, 0
}

// take waits for frames and moves as many as there are, and fit, into dst. It returns 0 when the queue is closed.
func (q *queue) take(dst []*held) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.count == 0 && q.state == opened {
		q.waiting = true
		q.wake.Wait()
	}
	n := min(q.count, len(dst))
	for i := range n {
		at := (q.head + i) & (len(q.ring) - 1)
		dst[i], q.ring[at] = q.ring[at], nil
		q.bytes -= len(dst[i].f.Data)
	}
	q.head = (q.head + n) & (len(q.ring) - 1)
	q.count -= n
	return n
}

// bufferSizes are the sizes of the buffers that frames wait in. The largest holds any superframe.
var bufferSizes = [...]int{256, 1664, 4352, 16896, link.EthernetHeaderLen + link.MaxSuperframe}

// held is a frame that waits, with the buffer that it is in. f.Data is a part of buf.
type held struct {
	f    link.Frame
	buf  []byte
	pool *sync.Pool
}

// hold copies f into a buffer from the pools, which the garbage collector empties when the switch is idle.
func (s *Switch) hold(f *link.Frame) *held {
	n, class := f.Len(), 0
	for bufferSizes[class] < n {
		class++
	}
	h, _ := s.pools[class].Get().(*held)
	if h == nil {
		h = &held{buf: make([]byte, bufferSizes[class]), pool: &s.pools[class]}
	}
	h.f = *f
	h.f.Data, h.f.More = h.buf[:n], nil
	at := copy(h.buf, f.Data)
	for _, m := range f.More {
		at += copy(h.buf[at:], m)
	}
	return h
}
