package ring

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Exchange says hello on a new connection, with the memory of a ring of n bytes that this side will take frames from, and takes the
// other side's, whose hello decode checks: it returns the size of the other's ring. Who does not say hello in time is an error.
func Exchange(conn *net.UnixConn, patience time.Duration, hello []byte, n int, decode func([]byte) (ring int, err error)) (in, out []byte, err error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, nil, err
	}
	fd, in, err := NewMemory(n)
	if err != nil {
		return nil, nil, err
	}
	err = Send(conn, hello, fd)
	_ = unix.Close(fd)
	if err == nil {
		out, err = ReceiveMemory(conn, decode)
	}
	if err == nil {
		if err = conn.SetDeadline(time.Time{}); err != nil {
			_ = unix.Munmap(out)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, unix.Munmap(in))
	}
	return in, out, nil
}

// ReceiveMemory receives a hello, which decode checks, and maps the memory that comes with it.
func ReceiveMemory(conn *net.UnixConn, decode func([]byte) (ring int, err error)) ([]byte, error) {
	b := make([]byte, maxMessage+1)
	n, fds, err := Receive(conn, b)
	if err != nil {
		return nil, err
	}
	defer CloseAll(fds)
	size, err := decode(b[:n])
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		return nil, fmt.Errorf("a hello with %d descriptors, and it needs 1: %w", len(fds), unix.EINVAL)
	}
	return MapMemory(fds[0], size)
}
