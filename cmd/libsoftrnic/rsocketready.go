//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/verbs/rsocket"
)

// Events of rs_arm: as poll has them.
const (
	pollIn  = unix.POLLIN
	pollOut = unix.POLLOUT
	pollErr = unix.POLLERR
	pollHup = unix.POLLHUP
)

// pollEvents is what poll says of an rsocket.
func pollEvents(r rsocket.Ready) (events int) {
	for i, event := range [...]int{pollIn, pollOut, pollHup, pollErr} {
		if r&[...]rsocket.Ready{rsocket.Readable, rsocket.Writable, rsocket.HungUp, rsocket.Failed}[i] != 0 {
			events |= event
		}
	}
	return events
}

// readiness is what threads that wait for an rsocket sleep on: an eventfd for reading, whose number is that of the rsocket, and
// when somebody has waited for it one for writing. Each is readable while the rsocket is ready. They are kept so only while a
// thread waits, and are of no meaning otherwise: data that nobody waits for costs no system call.
type readiness struct {
	waiters atomic.Int32 // threads

	mu      sync.Mutex
	fds     [2]int // for reading and writing; -1 is none
	waiting [2]int // threads for each
	raised  [2]bool
	closed  bool
}

func newReadiness() (*readiness, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return &readiness{fds: [2]int{fd, -1}}, err
}

// arm adds a thread that waits for events, and returns the descriptors that it is to sleep on, of which set takes care from now on.
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

// disarm undoes arm.
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

// set wakes those who wait for what the rsocket is ready for.
func (r *readiness) set(ready rsocket.Ready) {
	if r.waiters.Load() == 0 {
		return // who arms looks afterwards
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, want := range [2]rsocket.Ready{rsocket.Readable, rsocket.Writable} {
		if r.waiting[i] > 0 {
			r.raise(i, ready&(want|rsocket.HungUp|rsocket.Failed) != 0)
		}
	}
}

// raise makes a descriptor readable, or not. mu is held.
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

// close wakes all who wait, and closes the descriptors.
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
