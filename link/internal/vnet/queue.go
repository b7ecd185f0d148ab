//go:build linux

package vnet

import (
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/idle"
)

// queue receives from one descriptor, on its own goroutine or on that of a poller.
type queue struct {
	conn *Conn
	fd   int
	aux  *auxdata // nil: VLAN tags are in the frames
	done chan struct{}

	watch      idle.Watch
	standingBy atomic.Bool
	wake       chan struct{} // ends standBy

	mu     sync.Mutex // held by the receiver
	recv   link.Receiver
	arena  []byte
	frames []link.Frame
	limit  int // most frames in the next batch
}

// A batch consists of the frames that are read before they are passed on together. The arena has
// room for many small frames, but only for one superframe, which is best processed while it is in
// the cache. Batches begin with one frame and grow with the traffic. A single frame is thus passed
// on before the next read.
const (
	largest     = HeaderLen + link.EthernetHeaderLen + 2*link.TagLen + link.MaxSuperframe
	arenaLen    = largest + 32<<10
	batchFrames = 64
)

func newQueue(c *Conn, fd int) *queue {
	var aux *auxdata
	if c.packets {
		aux = new(auxdata)
	}
	return &queue{conn: c, fd: fd, aux: aux, wake: make(chan struct{}, 1), done: make(chan struct{}),
		arena: make([]byte, arenaLen), frames: make([]link.Frame, 0, batchFrames), limit: 1}
}

func (q *queue) start(recv link.Receiver) {
	q.mu.Lock()
	q.recv = recv
	q.mu.Unlock()
	go q.serve()
}

// serve is the link's own goroutine.
func (q *queue) serve() {
	defer close(q.done)
	c := q.conn
	reader := idle.NewReader(&idle.DeviceReader, idle.Wait(c.wait))
	alarm := time.NewTimer(idle.PollingEndsAfter)
	defer alarm.Stop()
	for !c.closed.Load() {
		q.mu.Lock()
		busy, err := q.deliver(q.read())
		bulk := q.bulk()
		q.mu.Unlock()
		switch {
		case err != nil:
			return
		case busy:
			reader.Received(bulk)
			continue
		case q.watch.Polling():
			q.standBy(alarm)
			reader.Stop()
			continue
		}
		if !reader.Empty() {
			continue
		}
		idle.YieldBeforeSleep()
		if await(q.fd, unix.POLLIN, c.stop) != nil {
			return
		}
	}
}

// standBy sleeps while applications poll. If it woke up for each frame that they receive, it would
// only disturb them.
func (q *queue) standBy(alarm *time.Timer) {
	for {
		if polls, _ := q.watch.Look(); !polls {
			return
		}
		// endPoll ends the watch, and then reads standingBy. At least one of the two goroutines sees the
		// other's store.
		q.standingBy.Store(true)
		if q.watch.Polling() {
			alarm.Reset(idle.PollingEndsAfter)
			select {
			case <-q.wake:
			case <-q.conn.closing:
				return
			case <-alarm.C:
			}
		}
		q.standingBy.Store(false)
	}
}

func (q *queue) endPoll() {
	if q.watch.End() && q.standingBy.Load() {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// poll receives unless another goroutine is receiving.
func (q *queue) poll() bool {
	q.watch.Poll()
	if !q.mu.TryLock() {
		return false
	}
	err := q.read()
	for i := range q.frames {
		q.frames[i].Polled = true
	}
	busy, _ := q.deliver(err)
	q.mu.Unlock()
	return busy
}

// deliver passes on the frames that read has stored. It returns false if there were none. err is
// the result of read. If deliver returns an error, no more frames will come. q.mu is held.
func (q *queue) deliver(err error) (bool, error) {
	if q.recv == nil {
		return false, nil
	}
	if len(q.frames) > 0 {
		q.recv(q.frames)
		return true, nil
	}
	switch err {
	case nil:
		return true, nil // the bytes that were read are not a valid frame
	case unix.EAGAIN:
		return false, nil
	case unix.EINTR, unix.ENETDOWN, unix.ENOBUFS: // ENETDOWN: the interface may come up again
		return true, nil
	case unix.EINVAL: // from a packet socket, for a frame whose segmentation has no virtio type
		return true, nil
	}
	return false, err
}

// bulk reports whether the last frame was a superframe.
func (q *queue) bulk() bool {
	return len(q.frames) > 0 && q.frames[len(q.frames)-1].Segmentation != 0
}

// read reads up to a batch of frames into q.frames, if there is a receiver. q.mu is held.
func (q *queue) read() error {
	q.frames = q.frames[:0]
	if q.recv == nil {
		return nil
	}
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
				insertTag(&f, free[HeaderLen:end:end], tag)
			}
			q.frames = append(q.frames, f)
		}
		free = free[min((end+63)&^63, len(free)):]
	}
	q.limit = min(2*q.limit, batchFrames)
	return nil
}

// read is a non-blocking read(2). The runtime need not know of it, because it returns at once.
func read(fd int, b []byte) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)))
	return int(n), errno
}
