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
	messageInterval = 256 // after this many frames, a pair looks for a message
	maxMessage      = 512 // length of the longest message, in bytes
)

// messageReader reads the messages on a pair's connection.
type messageReader struct {
	conn   *net.UnixConn
	raw    syscall.RawConn
	handle func(message []byte, fds []int) error // nil: all messages are wakeups
	b      [maxMessage + 1]byte
	rights []byte

	wait  bool
	n, rn int
	err   error
	read  func(fd uintptr) bool // made once, because a closure allocates
}

func newMessageReader(conn *net.UnixConn, raw syscall.RawConn, handle func([]byte, []int) error) *messageReader {
	r := &messageReader{conn: conn, raw: raw, handle: handle}
	if handle != nil {
		r.rights = make([]byte, rightsLen)
	}
	r.read = func(fd uintptr) bool {
		r.n, r.rn, _, _, r.err = unix.Recvmsg(int(fd), r.b[:], r.rights, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		return !r.wait || !errors.Is(r.err, unix.EAGAIN) && !errors.Is(r.err, unix.EINTR)
	}
	return r
}

// next reads one message and passes it to handle. With wait, it waits until there is a message, the
// connection ends, or the read deadline passes. After the deadline it clears the deadline. The
// error is that of handle.
func (r *messageReader) next(wait bool) (ended bool, err error) {
	r.wait = wait
	err = r.raw.Read(r.read)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = r.conn.SetReadDeadline(time.Time{})
		return false, nil
	case err != nil:
		return true, nil
	case errors.Is(r.err, unix.EAGAIN) || errors.Is(r.err, unix.EINTR):
		return false, nil
	case r.err != nil || r.n == 0:
		return true, nil
	}
	fds := descriptors(r.rights[:r.rn])
	defer CloseAll(fds)
	if r.handle == nil || r.n == len(wakeup) {
		return false, nil
	}
	return false, r.handle(r.b[:r.n], fds)
}
