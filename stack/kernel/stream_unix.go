//go:build unix

package kernel

import (
	"errors"

	"golang.org/x/sys/unix"
)

// errNothing says that the kernel has nothing to read, or no room, now.
var errNothing error = unix.EAGAIN

// setReuseAddr lets a socket have a port of which others of a connection have been, or are, if those are set so too or have ended.
func setReuseAddr(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }

// writeNow writes as much of b as the kernel takes without waiting. A full buffer is errNothing, or n < len(b).
func writeNow(fd uintptr, b []byte) (n int, err error) {
	for {
		n, err = unix.Write(int(fd), b)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// readNow reads what has come. n is 0 without an error at the end of the stream.
func readNow(fd uintptr, b []byte) (n int, err error) {
	for {
		n, err = unix.Read(int(fd), b)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// fill waits for something to come, and reads it into have, or its end into end. The error is a timeout, or net.ErrClosed.
func (s *stream) fill() error {
	if err := s.raw.Read(s.waitIn); err != nil {
		return err
	}
	if s.took(); s.end != nil {
		s.release()
	}
	return nil
}
