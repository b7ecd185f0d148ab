//go:build linux

package vnet

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// event is an eventfd that ends a poll(2).
type event int

const noEvent event = -1

func newEvent() (event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return event(fd), err
}

func (e event) set() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(int(e), one[:]) // fails only if the event is set 2^64-1 times
}

func (e event) close() {
	if e != noEvent {
		_ = unix.Close(int(e))
	}
}

// await sleeps until fd is ready for the events of mask, or e is set.
func await(fd int, mask int16, e event) error {
	fds := [2]unix.PollFd{{Fd: int32(fd), Events: mask}, {Fd: int32(e), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds[:], -1); err != nil && err != unix.EINTR {
		return err
	}
	return nil
}
