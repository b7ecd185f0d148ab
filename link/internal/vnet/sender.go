//go:build linux

package vnet

import (
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// maxPieces is the largest number of pieces that one writev takes besides the header: the kernel's
// limit is 1024 (UIO_MAXIOV). A TCP superframe of small writes may have more.
const maxPieces = 1024 - 2

// smallFrame is a length in bytes. Up to it, copying a frame behind its header costs less than a
// writev of the two.
const smallFrame = 256

// sender writes frames.
type sender struct {
	conn   *Conn
	header [HeaderLen]byte
	iov    []unix.Iovec
	buf    []byte // for frames of more than maxPieces, or of at most smallFrame bytes
	cutter link.Cutter
}

func newSender(c *Conn) *sender { return &sender{conn: c} }

func (s *sender) writeFrame(f *link.Frame) error {
	errno := s.send(f)
	if f.Segmentation == link.UDP && (errno == unix.EINVAL || errno == unix.ENOBUFS) {
		// The device, or a kernel before 6.2, does not support UDP superframes.
		for p := range s.cutter.Packets(f) {
			if errno = s.send(&link.Frame{Data: p}); errno != 0 {
				break
			}
		}
	}
	if errno == 0 || errno == unix.ENOBUFS { // ENOBUFS: the interface's queue is full
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
			s.buf = append(append(s.buf[:0], s.header[:]...), f.Data...)
			return s.write(f, unix.SYS_WRITE, unsafe.Pointer(&s.buf[0]), len(s.buf))
		}
		s.iov = append(s.iov, iovec(s.header[:]))
	case len(f.More) == 0:
		return s.write(f, unix.SYS_WRITE, unsafe.Pointer(&f.Data[0]), len(f.Data))
	}
	if len(f.More) > maxPieces {
		s.buf = append(s.buf[:0], f.Data...)
		for _, m := range f.More {
			s.buf = append(s.buf, m...)
		}
		s.iov = append(s.iov, iovec(s.buf))
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

// write calls write(2) or writev(2) on the queue of f until the kernel takes the frame or refuses
// it.
func (s *sender) write(f *link.Frame, call uintptr, from unsafe.Pointer, n int) unix.Errno {
	fd, wasDown := s.conn.queueOf(f.Data).fd, false
	for {
		_, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(from), uintptr(n))
		switch {
		case errno == unix.EINTR:
		case errno == unix.ENETDOWN && !wasDown:
			wasDown = true // the first ENETDOWN may report a time before this call
		case errno == unix.EAGAIN && !s.conn.closed.Load():
			_ = await(fd, unix.POLLOUT, s.conn.stop)
		default:
			return errno
		}
	}
}

// queueOf returns the queue that a frame is sent on. All frames of a flow use one queue, because
// the kernel keeps the order only within a queue. The opposite flow uses the same one, because a
// TAP delivers answers on the queue that the flow was sent on.
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
