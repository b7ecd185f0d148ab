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

// queue holds the frames that wait for a port's host. Frames are dropped until it is open, and after it is closed.
type queue struct {
	dropped atomic.Uint64

	mu      sync.Mutex
	wake    sync.Cond // signalled when the port's goroutine has something to do
	ring    []*held   // count frames from head on; its length is a power of two and grows to queueFrames
	head    int
	count   int
	bytes   int
	waiting bool // the port's goroutine
	taken   bool // frames were taken, and done was not called yet
	state   queueState
}

type queueState uint8

const (
	unopened queueState = iota
	opened
	closed
)

// open calls first and lets frames in, unless the queue is closed. It returns the state that the queue was in before.
func (q *queue) open(first func()) (was queueState) {
	q.mu.Lock()
	defer q.mu.Unlock()
	was = q.state
	if was == unopened {
		first()
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
	wake := q.waiting && !q.taken
	if wake {
		q.waiting = false
	}
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

// take moves as many frames as there are, and as fit, into dst; the caller must call done afterwards. If there are
// none, or another caller has not called done yet, take returns 0, or waits if wait is set; then it returns 0 only
// after the queue was closed.
func (q *queue) take(dst []*held, wait bool) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.taken || q.count == 0 && q.state == opened {
		if !wait {
			return 0
		}
		q.waiting = true
		q.wake.Wait()
	}
	if q.count == 0 {
		return 0
	}
	q.taken = true
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

// done gives back the frames that take returned, after they were received.
func (q *queue) done() {
	q.mu.Lock()
	q.taken = false
	wake := q.waiting && (q.count > 0 || q.state == closed)
	if wake {
		q.waiting = false
	}
	q.mu.Unlock()
	if wake {
		q.wake.Signal()
	}
}

// bufferSizes are the sizes of the buffers that frames wait in. The largest holds any superframe.
var bufferSizes = [...]int{256, 1664, 4352, 16896, link.EthernetHeaderLen + 2*link.TagLen + link.MaxSuperframe}

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
	h.f.Data, h.f.More, h.f.TCI = h.buf[:n], nil, 0
	at := copy(h.buf, f.Data)
	for _, m := range f.More {
		at += copy(h.buf[at:], m)
	}
	return h
}
