//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// Events of rs_arm, as in poll.
const (
	pollIn  = unix.POLLIN
	pollOut = unix.POLLOUT
	pollErr = unix.POLLERR
	pollHup = unix.POLLHUP
)

// pollEvents returns the events of poll for an rsocket's readiness.
func pollEvents(r rsocket.Ready) (events int) {
	for i, event := range [...]int{pollIn, pollOut, pollHup, pollErr} {
		if r&[...]rsocket.Ready{rsocket.Readable, rsocket.Writable, rsocket.HungUp, rsocket.Failed}[i] != 0 {
			events |= event
		}
	}
	return events
}

// readiness has the eventfds on which threads sleep to wait for an rsocket. The number of the
// eventfd for reading is the number of the rsocket. The eventfd for writing is created by the first
// thread that waits for it. Each eventfd is readable while the rsocket is ready. Both are updated
// only while a thread waits, and mean nothing otherwise. Data without a waiting thread therefore
// costs no system call.
type readiness struct {
	waiters atomic.Int32 // waiting threads

	mu      sync.Mutex
	fds     [2]int // for reading and writing; -1: none
	waiting [2]int // waiting threads, for each
	raised  [2]bool
	closed  bool
}

func newReadiness() (*readiness, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return &readiness{fds: [2]int{fd, -1}}, err
}

// arm adds a thread that waits for events. It returns the descriptors to sleep on. From now on, set
// updates them.
func (r *readiness) arm(events int) (fds [2]int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fds = [2]int{-1, -1}
	if r.closed {
		return fds, unix.EBADF
	}
	if events&pollOut != 0 && r.fds[1] < 0 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return fds, err
		}
		r.fds[1] = fd
	}
	r.waiters.Add(1)
	for i, event := range [2]int{pollIn, pollOut} {
		if events&event != 0 {
			r.waiting[i]++
			fds[i] = r.fds[i]
		}
	}
	return fds, nil
}

// disarm reverts arm.
func (r *readiness) disarm(events int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiters.Add(-1)
	for i, event := range [2]int{pollIn, pollOut} {
		if events&event != 0 {
			r.waiting[i]--
		}
	}
}

// set wakes the threads that wait for an event for which the rsocket is ready.
func (r *readiness) set(ready rsocket.Ready) {
	if r.waiters.Load() == 0 {
		return // a thread checks the readiness after arm
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, want := range [2]rsocket.Ready{rsocket.Readable, rsocket.Writable} {
		if r.waiting[i] > 0 {
			r.raise(i, ready&(want|rsocket.HungUp|rsocket.Failed) != 0)
		}
	}
}

// raise makes a descriptor readable or not readable. mu is held.
func (r *readiness) raise(i int, up bool) {
	if r.closed || r.fds[i] < 0 || r.raised[i] == up {
		return
	}
	r.raised[i] = up
	var count [8]byte
	if up {
		binary.NativeEndian.PutUint64(count[:], 1)
		_, _ = unix.Write(r.fds[i], count[:]) // fails only if the count is near 2^64
	} else {
		_, _ = unix.Read(r.fds[i], count[:])
	}
}

// close wakes all waiting threads and closes the descriptors.
func (r *readiness) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.fds {
		r.raise(i, true)
	}
	r.closed = true
	for _, fd := range r.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
