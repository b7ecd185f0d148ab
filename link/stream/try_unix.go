//go:build unix

package stream

import (
	"net"
	"syscall"
)

// maxPath is the longest path of a unix socket, in bytes.
const maxPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// tryWriter writes as much as a socket takes without blocking. Only one goroutine at a time may use
// it.
type tryWriter struct {
	raw     syscall.RawConn // nil: no non-blocking writes
	attempt func(fd uintptr) bool
	b       []byte
	n       int
	err     error
}

func (w *tryWriter) init(conn net.Conn) {
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			w.raw = raw
		}
	}
	w.attempt = func(fd uintptr) bool { // made once, because a closure allocates
		for {
			w.n, w.err = syscall.Write(int(fd), w.b)
			if w.err != syscall.EINTR {
				return true
			}
		}
	}
}

// write returns how many bytes of b were written, possibly none.
func (w *tryWriter) write(b []byte) (int, error) {
	if w.raw == nil {
		return 0, nil
	}
	w.b = b
	err := w.raw.Write(w.attempt)
	w.b = nil
	switch {
	case err != nil:
		return 0, err
	case w.err == syscall.EAGAIN:
		return 0, nil
	case w.err != nil:
		return 0, w.err
	}
	return w.n, nil
}
