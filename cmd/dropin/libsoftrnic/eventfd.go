//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// eventfd is a descriptor that counts events (EFD_SEMAPHORE). Programs wait for it with read, poll
// or epoll, as for the kernel's descriptors. The program chooses whether a read blocks.
type eventfd int

func newEventfd() (eventfd, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_SEMAPHORE)
	return eventfd(fd), err
}

func (fd eventfd) close() error { return unix.Close(int(fd)) }

// add adds n to the count. A negative n removes events. read is the number of those for which a
// thread has read the descriptor and not yet taken one, so that the count was 0. That thread takes
// another event, which stays counted unless the caller sees to it, as an eventQueue does. If the
// kernel is too old to read without blocking, the count stays too high, too. A thread that then
// reads the descriptor finds no event.
func (fd eventfd) add(n int) (read int) {
	var count [8]byte
	if n > 0 {
		binary.NativeEndian.PutUint64(count[:], uint64(n))
		_, _ = unix.Write(int(fd), count[:]) // fails only if the count is near 2^64
	}
	for ; n < 0; n++ {
		if _, err := unix.Preadv2(int(fd), [][]byte{count[:]}, -1, unix.RWF_NOWAIT); err == unix.EAGAIN {
			read++
		}
	}
	return read
}

// eventQueue is a queue of events for C with the descriptor that counts them.
type eventQueue[T any] struct {
	mu     sync.Mutex
	fd     eventfd // -1 when the queue is closed
	events []T
	read   int // threads that have read the descriptor for an event that was then discarded
}

func newEventQueue[T any]() (*eventQueue[T], error) {
	fd, err := newEventfd()
	return &eventQueue[T]{fd: fd}, err
}

// close closes the descriptor. The queue must not read or write it any more, because a file of the
// program may get the same number.
func (q *eventQueue[T]) close() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	fd := q.fd
	q.fd, q.events = -1, nil
	return fd.close()
}

// add adds an event, unless the queue is closed.
func (q *eventQueue[T]) add(e T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fd < 0 {
		return
	}
	q.events = append(q.events, e)
	q.fd.add(1)
}

// take removes and returns the oldest event. It calls counted with the event before a concurrent
// discard can return. The caller has read the descriptor.
func (q *eventQueue[T]) take(counted func(T)) (e T, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		q.read = max(q.read-1, 0)
		return e, syscall.EAGAIN
	}
	e = q.events[0]
	counted(e)
	q.events = q.events[1:]
	if q.read > 0 { // the event is still counted, as this thread has read the descriptor for another one
		q.read += q.fd.add(-1) - 1
	}
	return e, nil
}

// discard removes the events that match.
func (q *eventQueue[T]) discard(matches func(T) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var kept []T
	for _, e := range q.events {
		if matches(e) {
			q.read += q.fd.add(-1)
		} else {
			kept = append(kept, e)
		}
	}
	q.events = kept
}
