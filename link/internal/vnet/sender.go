//go:build linux

package vnet

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// maxPieces is how much of a frame goes to the kernel in pieces: writev takes 1024 in all (UIO_MAXIOV), and a TCP
// superframe of small writes has more.
const maxPieces = 1024 - 2

// smallFrame is the size in bytes up to which it costs less to copy a frame behind its header than to have the kernel gather
// the two.
const smallFrame = 256

// sender writes frames.
type sender struct {
	conn   *Conn
	header [HeaderLen]byte
	iov    []unix.Iovec
	whole  []byte // where a frame of more than maxPieces, or of no more than smallFrame bytes, is put together
	cutter link.Cutter
}

func newSender(c *Conn) *sender { return &sender{conn: c} }

func (s *sender) writeFrame(f *link.Frame) error {
	errno := s.send(f)
	if f.Segmentation == link.UDP && (errno == unix.EINVAL || errno == unix.ENOBUFS) {
		// A device, or a kernel before 6.2, that does not carry UDP superframes.
		for p := range s.cutter.Packets(f) {
			if errno = s.send(&link.Frame{Data: p}); errno != 0 {
				break
			}
		}
	}
	if errno == 0 || errno == unix.ENOBUFS { // the interface's queue was full
		return nil
	}
	return s.conn.explain(f, errno)
}

func (c *Conn) explain(f *link.Frame, errno unix.Errno) error {
	switch {
	case c.closed.Load():
		return fmt.Errorf("%s: %w", c.name, net.ErrClosed)
	case errno == unix.EIO || errno == unix.ENETDOWN:
		return fmt.Errorf("%s is down: have root bring it up: ip link set dev %s up: %w", c.name, c.name, errno)
	}
	return fmt.Errorf("%s: write of %d bytes: %w", c.name, f.Len(), errno)
}

func (s *sender) send(f *link.Frame) unix.Errno {
	s.iov = s.iov[:0]
	switch {
	case !s.conn.bare:
		encode(&s.header, f)
		if len(f.Data) <= smallFrame && len(f.More) == 0 {
			s.whole = append(append(s.whole[:0], s.header[:]...), f.Data...)
			return s.write(f, unix.SYS_WRITE, unsafe.Pointer(&s.whole[0]), len(s.whole))
		}
		s.iov = append(s.iov, iovec(s.header[:]))
	case len(f.More) == 0:
		return s.write(f, unix.SYS_WRITE, unsafe.Pointer(&f.Data[0]), len(f.Data))
	}
	if len(f.More) > maxPieces {
		s.whole = append(s.whole[:0], f.Data...)
		for _, m := range f.More {
			s.whole = append(s.whole, m...)
		}
		s.iov = append(s.iov, iovec(s.whole))
	} else {
		s.iov = append(s.iov, iovec(f.Data))
		for _, m := range f.More {
			if len(m) > 0 {
				s.iov = append(s.iov, iovec(m))
			}
		}
	}
	defer clear(s.iov)
	return s.write(f, unix.SYS_WRITEV, unsafe.Pointer(&s.iov[0]), len(s.iov))
}

// write is write(2) or writev(2) on the queue of f, again and again until the kernel has taken it or refuses it.
func (s *sender) write(f *link.Frame, call uintptr, from unsafe.Pointer, n int) unix.Errno {
	fd, wasDown := s.conn.queueOf(f.Data).fd, false
	for {
		_, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(from), uintptr(n))
		switch {
		case errno == unix.EINTR:
		case errno == unix.ENETDOWN && !wasDown:
			wasDown = true // the first reports that the interface was down at some time before
		case errno == unix.EAGAIN && !s.conn.closed.Load():
			_ = await(fd, unix.POLLOUT, s.conn.stop)
		default:
			return errno
		}
	}
}

// queueOf is the queue that a frame is sent on. It is the same for all frames of a flow, as the kernel keeps the order only
// within a queue, and for those of the opposite flow, as a TAP delivers answers on the queue that the flow was sent on.
func (c *Conn) queueOf(b []byte) *queue {
	n := len(c.queues)
	if n == 1 {
		return c.queues[0]
	}
	ip := link.NetworkOffset(b)
	at := ip + 20
	if len(b) > ip && b[ip]>>4 == 6 {
		at = ip + 40
	}
	if len(b) < at+4 {
		return c.queues[0]
	}
	return c.queues[int(b[at]^b[at+1]^b[at+2]^b[at+3])%n]
}

func iovec(b []byte) unix.Iovec {
	v := unix.Iovec{Base: unsafe.SliceData(b)}
	v.SetLen(len(b))
	return v
}
