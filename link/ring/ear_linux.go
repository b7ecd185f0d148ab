package ring

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	hearInterval = 256 // how many frames a pair takes before it looks whether there is a message
	maxMessage   = 512 // bytes of the longest message
)

// ear reads the messages on a pair's connection.
type ear struct {
	conn   *net.UnixConn
	raw    syscall.RawConn
	hear   func(message []byte, fds []int) error // nil: messages are all bells
	b      [maxMessage + 1]byte
	rights []byte

	wait  bool
	n, rn int
	err   error
	read  func(fd uintptr) bool // made once, as it is allocated
}

func newEar(conn *net.UnixConn, raw syscall.RawConn, hear func([]byte, []int) error) *ear {
	e := &ear{conn: conn, raw: raw, hear: hear}
	if hear != nil {
		e.rights = make([]byte, rightsLen)
	}
	e.read = func(fd uintptr) bool {
		e.n, e.rn, _, _, e.err = unix.Recvmsg(int(fd), e.b[:], e.rights, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return !e.wait || !errors.Is(e.err, unix.EAGAIN) && !errors.Is(e.err, unix.EINTR)
	}
	return e
}

// listen takes a message, and if it is to wait, waits for one until there is one, the connection has ended, or its read deadline
// is over, which is then removed. The error is hear's.
func (e *ear) listen(wait bool) (ended bool, err error) {
	e.wait = wait
	err = e.raw.Read(e.read)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = e.conn.SetReadDeadline(time.Time{})
		return false, nil
	case err != nil:
		return true, nil
	case errors.Is(e.err, unix.EAGAIN) || errors.Is(e.err, unix.EINTR):
		return false, nil
	case e.err != nil || e.n == 0:
		return true, nil
	}
	fds := descriptors(e.rights[:e.rn])
	defer CloseAll(fds)
	if e.hear == nil || e.n == len(bell) {
		return false, nil
	}
	return false, e.hear(e.b[:e.n], fds)
}
