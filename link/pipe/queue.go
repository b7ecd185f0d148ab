package pipe

import (
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
)

// A port queues at most queueFrames frames and queueBytes bytes for its host. Further frames are
// dropped, as in a switch. The host receives up to batchFrames at a time.
const (
	queueFrames = 4096
	queueBytes  = 64 << 20
	batchFrames = 64
)

// queue holds the frames for a port's host. It drops frames before it is opened, and after it is
// closed.
type queue struct {
	dropped atomic.Uint64

	mu   sync.Mutex
	wake sync.Cond // signalled when the port's goroutine has something to do
	// The frames: count from head on. The length is a power of two and grows to queueFrames.
	ring    []*queuedFrame
	head    int
	count   int
	bytes   int
	waiting bool // the port's goroutine waits
	taken   bool // frames were taken, and done has not been called yet
	state   queueState
}

type queueState uint8

const (
	unopened queueState = iota
	opened
	closed
)

// open calls first and starts to accept frames, unless the queue is closed. It returns the previous
// state.
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

// close drops queued frames and ends take. It returns false if the queue was never opened.
func (q *queue) close() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	was := q.state
	q.state = closed
	q.ring, q.count, q.bytes = nil, 0, 0
	q.wake.Signal()
	return was == opened
}

// put adds a copy of f, or drops it. It copies outside the lock.
func (q *queue) put(s *Switch, f *link.Frame) {
	h := s.copyFrame(f)
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

// grow doubles the ring. q.mu is held and the ring is full.
func (q *queue) grow() {
	ring := make([]*queuedFrame, max(2*len(q.ring), batchFrames))
	n := copy(ring, q.ring[q.head:])
	copy(ring[n:], q.ring[:q.head])
	q.ring, q.head = ring, 0
}

// take moves as many queued frames into dst as fit. The caller must then call done. take returns 0
// if no frames are queued, or if another caller has not yet called done. With wait, it waits in
// these cases, and returns 0 only after the queue was closed.
func (q *queue) take(dst []*queuedFrame, wait bool) int {
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

// done is called after the frames that take returned have been received.
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

// bufferSizes are the sizes of the buffers of queued frames. The largest holds any superframe.
var bufferSizes = [...]int{256, 1664, 4352, 16896, link.EthernetHeaderLen + 2*link.TagLen + link.MaxSuperframe}

// queuedFrame is a queued frame with its buffer. f.Data is a part of buf.
type queuedFrame struct {
	f    link.Frame
	buf  []byte
	pool *sync.Pool
}

// copyFrame copies f into a buffer from the pools, which the garbage collector empties when the
// switch is idle.
func (s *Switch) copyFrame(f *link.Frame) *queuedFrame {
	n, class := f.Len(), 0
	for bufferSizes[class] < n {
		class++
	}
	h, _ := s.pools[class].Get().(*queuedFrame)
	if h == nil {
		h = &queuedFrame{buf: make([]byte, bufferSizes[class]), pool: &s.pools[class]}
	}
	h.f = *f
	h.f.Data, h.f.More, h.f.TCI = h.buf[:n], nil, 0
	at := copy(h.buf, f.Data)
	for _, m := range f.More {
		at += copy(h.buf[at:], m)
	}
	return h
}
