package ring

import (
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Handshake exchanges hello messages on a new connection. It sends hello with the memory of a ring
// of n bytes, from which this side will take frames. decode checks the peer's hello and returns the
// size of the peer's ring. Handshake fails if the peer's hello does not arrive within timeout.
func Handshake(conn *net.UnixConn, timeout time.Duration, hello []byte, n int,
	decode func([]byte) (ring int, err error)) (in, out []byte, err error) {
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
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

// ReceiveMemory receives a hello, which decode checks, and maps the ring's memory that comes with
// it.
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
		return nil, fmt.Errorf("hello has %d descriptors, want 1: %w", len(fds), unix.EINVAL)
	}
	return mapPeer(fds[0], size)
}
