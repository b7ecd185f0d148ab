//go:build linux

package vnet

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// queue receives from one descriptor: on its own goroutine, or on that of whoever polls.
type queue struct {
	conn *Conn
	fd   int
	aux  *auxdata // nil: tags come in frames
	done chan struct{}

	polling atomic.Uint32 // polled, watched or 0
	napping atomic.Bool
	kick    chan struct{} // ends a nap

	mu     sync.Mutex // held by whoever receives
	recv   link.Receiver
	arena  []byte
	frames []link.Frame
	limit  int    // frames that the next batch may have
	idle   uint32 // reads that found nothing
	sole   bool   // goroutines have one processor between them
}

// Values of queue.polling: polled since the goroutine has looked; not polled since it has; 0 is not polled at all.
const (
	polled = 1 + iota
	watched
)

// A batch is what can be read at once, as long as there is room for the largest frame: many small ones, but one
// superframe, which is best looked at while it is in the processor's cache. What arrives alone is not held back by a
// look for more: batches grow with the traffic.
const (
	largest     = HeaderLen + link.EthernetHeaderLen + 2*link.TagLen + link.MaxSuperframe
	arenaLen    = largest + 32<<10
	batchFrames = 64
)

// Other goroutines are let run after so many empty reads, and once in bulkRest while superframes come. More often would not
// do: each time the runtime wakes a thread to look for work, which takes a processor from somebody. Where there is but one,
// nothing else lets them run, and no thread is woken: it is after soleRest.
const (
	idleRest = 512
	soleRest = 4
	bulkRest = 500 * time.Microsecond
)

// The goroutine spins for so long after traffic. While others poll, it naps: for longer than anybody is busy sending
// between two polls.
const (
	spinTime = 50 * time.Microsecond
	nap      = time.Millisecond
)

func newQueue(c *Conn, fd int) *queue {
	var aux *auxdata
	if c.packets {
		aux = new(auxdata)
	}
	return &queue{conn: c, fd: fd, aux: aux, kick: make(chan struct{}, 1), done: make(chan struct{}),
		arena: make([]byte, arenaLen), frames: make([]link.Frame, 0, batchFrames), limit: 1}
}

func (q *queue) start(recv link.Receiver) {
	q.mu.Lock()
	q.recv = recv
	q.sole = runtime.GOMAXPROCS(0) == 1
	q.mu.Unlock()
	go q.serve()
}

// serve is the link's own goroutine.
func (q *queue) serve() {
	defer close(q.done)
	c := q.conn
	var after spin
	alarm := time.NewTimer(nap)
	defer alarm.Stop()
	for !c.closed.Load() {
		q.mu.Lock()
		busy, err := q.receive(false)
		bulk, rest := q.bulk(), !busy && q.rests()
		q.mu.Unlock()
		switch {
		case err != nil:
			return
		case busy:
			after.begin(bulk)
		case q.polling.Load() != 0:
			q.standBy(alarm)
			after.end()
		case after.rests(c.wait):
			runtime.Gosched() // whom the frames have woken goes before more of them are waited for
		case c.wait == link.WaitPoll || c.wait == link.WaitAdaptive && after.goesOn():
			if rest {
				runtime.Gosched()
			}
			yield()
		default:
			if await(q.fd, unix.POLLIN, c.stop) != nil {
				return
			}
		}
	}
}

// spin is the time after traffic in which more is expected.
type spin struct {
	rested  time.Time // when others were last let run
	traffic bool      // since then
	bulk    bool      // and it was a superframe
	until   time.Time // zero: not spinning
}

func (s *spin) begin(bulk bool) { s.traffic, s.bulk, s.until = true, bulk, time.Time{} }
func (s *spin) end()            { s.traffic, s.until = false, time.Time{} }

// rests tells whether others are to run, once after traffic.
func (s *spin) rests(wait link.Wait) bool {
	if !s.traffic {
		return false
	}
	now := time.Now()
	if s.until.IsZero() {
		s.until = now.Add(spinTime)
	}
	if s.bulk && wait != link.WaitEvent && now.Before(s.until) && now.Sub(s.rested) < bulkRest {
		return false
	}
	s.traffic, s.rested = false, now
	return true
}

func (s *spin) goesOn() bool {
	if s.until.IsZero() || time.Now().Before(s.until) {
		return !s.until.IsZero()
	}
	s.end()
	return false
}

// standBy sleeps for as long as applications poll. To be woken for a frame that they receive would disturb them.
func (q *queue) standBy(alarm *time.Timer) {
	for q.polling.CompareAndSwap(polled, watched) {
		// endPoll clears polling and then looks whether there is a nap to end: one of the two sees the other.
		q.napping.Store(true)
		if q.polling.Load() != 0 {
			alarm.Reset(nap)
			select {
			case <-q.kick:
			case <-q.conn.closing:
				return
			case <-alarm.C:
			}
		}
		q.napping.Store(false)
	}
	q.polling.CompareAndSwap(watched, 0)
}

func (q *queue) endPoll() {
	if q.polling.Swap(0) != 0 && q.napping.Load() {
		select {
		case q.kick <- struct{}{}:
		default:
		}
	}
}

// poll receives unless somebody else does.
func (q *queue) poll() bool {
	if q.polling.Load() != polled { // a store would take the cache line from the others
		q.polling.Store(polled)
	}
	if !q.mu.TryLock() {
		return false
	}
	busy, _ := q.receive(true)
	rest := !busy && q.rests()
	q.mu.Unlock()
	if rest {
		runtime.Gosched()
	}
	return busy
}

// rests tells whether others are to run after a read that found nothing. q.mu is held.
func (q *queue) rests() bool {
	if q.idle%idleRest == 0 {
		q.sole = runtime.GOMAXPROCS(0) == 1 // it may change
	}
	return q.idle%idleRest == 0 || q.sole && q.idle%soleRest == 0
}

// receive reads a batch and passes it on; false if there was nothing. An error means that nothing will come any more.
// q.mu is held.
func (q *queue) receive(polled bool) (bool, error) {
	if q.recv == nil {
		return false, nil
	}
	err := q.read(polled)
	if len(q.frames) > 0 {
		q.recv(q.frames)
		return true, nil
	}
	switch err {
	case nil:
		return true, nil // what was there is no frame
	case unix.EAGAIN:
		q.idle++
		return false, nil
	case unix.EINTR, unix.ENETDOWN, unix.ENOBUFS: // the interface may come up again
		return true, nil
	case unix.EINVAL: // a packet socket's answer to one frame whose segmentation has no virtio name
		return true, nil
	}
	return false, err
}

// bulk tells whether a superframe came last.
func (q *queue) bulk() bool {
	return len(q.frames) > 0 && q.frames[len(q.frames)-1].Segmentation != 0
}

// read makes q.frames what is there.
func (q *queue) read(polled bool) error {
	q.frames = q.frames[:0]
	free := q.arena
	for len(free) >= largest && len(q.frames) < q.limit {
		n, front, tag, errno := 0, 0, uint32(0), unix.Errno(0)
		if q.aux == nil {
			n, errno = read(q.fd, free)
		} else {
			front = link.TagLen
			n, tag, errno = q.aux.read(q.fd, free[front:])
		}
		if errno != 0 {
			q.limit = 1
			return errno
		}
		if n == 0 {
			return unix.EBADFD
		}
		end := front + n
		var f link.Frame
		if q.conn.decode(free[front:end:end], &f) {
			if tag != 0 {
				putBack(&f, free[HeaderLen:end:end], tag)
			}
			f.Polled = polled
			q.frames = append(q.frames, f)
		}
		free = free[min((end+63)&^63, len(free)):]
	}
	q.limit = min(2*q.limit, batchFrames)
	return nil
}

// read is read(2), which does not wait here: the runtime need not know of it.
func read(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}
