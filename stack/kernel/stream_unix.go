//go:build unix

package kernel

import (
	"errors"

	"golang.org/x/sys/unix"
)

// errWouldBlock says that there is nothing to read, or no room, now.
var errWouldBlock error = unix.EAGAIN

// setReuseAddr allows binding to a port of earlier connections that have ended or have this option.
func setReuseAddr(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }

// writeNow writes as much of b as the kernel takes without waiting. If the kernel's buffer is full,
// the error is errWouldBlock, or n is less than len(b).
func writeNow(fd uintptr, b []byte) (n int, err error) {
	for {
		n, err = unix.Write(int(fd), b)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// readNow reads available data. At the end of the stream n is 0 without an error.
func readNow(fd uintptr, b []byte) (n int, err error) {
	for {
		n, err = unix.Read(int(fd), b)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// fill waits for data and reads it into have, or stores the end of the stream in end. The error is
// a timeout or net.ErrClosed.
func (s *stream) fill() error {
	if err := s.raw.Read(s.waitIn); err != nil {
		return err
	}
	if s.readDone(); s.end != nil {
		s.release()
	}
	return nil
}
