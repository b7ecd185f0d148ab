//go:build unix

package stream

import (
	"net"
	"syscall"
)

// maxPath is the number of bytes that the path of a unix socket may have.
const maxPath = len(syscall.RawSockaddrUnix{}.Path) - 1

// tryWriter writes what a socket takes without waiting. Only one goroutine may use it at a time.
type tryWriter struct {
	raw     syscall.RawConn // nil: it can take nothing without waiting
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
	w.attempt = func(fd uintptr) bool { // made once, as it is allocated
		for {
			w.n, w.err = syscall.Write(int(fd), w.b)
			if w.err != syscall.EINTR {
				return true
			}
		}
	}
}

// write returns how many bytes of b were taken, perhaps none.
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
