package kernel

// Sending several superframes with one system call: sendmmsg and UDP_SEGMENT.

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack/kernel/internal/inlet"
)

// outConn is a socket for sending.
type outConn = os.File

func newOutConn(udp *net.UDPConn) (*outConn, syscall.RawConn, error) { return inlet.Unwatched(udp) }

// setSending prepares a socket for sending. It must not fragment: the ICRC covers the flag, and the identification, which is 0
// with it.
func setSending(fd uintptr, v4 bool) error {
	s := int(fd)
	_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_SNDBUF, inlet.SocketBuffer)
	_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF, 0) // nobody reads there; the kernel makes it its smallest
	if v4 {
		return unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}
	return unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
}

// canSegment tells whether the kernel cuts superframes. gVisor's lets the option be set, and fails when something is sent; it
// does not let it be read.
func canSegment(raw syscall.RawConn) bool {
	var err error
	if raw.Control(func(fd uintptr) { _, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT) }) != nil {
		return false
	}
	return err == nil
}

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

var native = binary.NativeEndian

// putControl appends a control message with a value to b.
func putControl(b []byte, level, kind int32, value []byte) []byte {
	at, space := len(b), unix.CmsgSpace(len(value))
	b = b[:at+space]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[at]))
	h.Level, h.Type = level, kind
	h.SetLen(unix.CmsgLen(len(value)))
	copy(b[at+unix.CmsgLen(0):], value)
	return b
}

// controlSpace holds three control messages of at most four bytes.
const controlSpace = 3 * 32

// way is where a path leads, as the kernel takes it.
type way struct {
	to      unix.RawSockaddrInet6 // or RawSockaddrInet4, which is shorter
	toLen   uint32
	control [controlSpace]byte // traffic class, hop limit, and UDP_SEGMENT
	single  int                // bytes of control without the last
	all     int
	segment int // where the segment size is in control
}

func (w *way) init(to netip.AddrPort, index int, trafficClass, hopLimit uint8) {
	var port [2]byte
	binary.BigEndian.PutUint16(port[:], to.Port())
	level, class, limit := int32(unix.IPPROTO_IPV6), int32(unix.IPV6_TCLASS), int32(unix.IPV6_HOPLIMIT)
	if a := to.Addr(); a.Is4() {
		level, class, limit = unix.IPPROTO_IP, unix.IP_TOS, unix.IP_TTL
		sa := (*unix.RawSockaddrInet4)(unsafe.Pointer(&w.to))
		*sa = unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: a.As4(), Port: native.Uint16(port[:])}
		w.toLen = unix.SizeofSockaddrInet4
	} else {
		w.to = unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: a.As16(), Port: native.Uint16(port[:])}
		if a.Zone() != "" {
			w.to.Scope_id = uint32(index)
		}
		w.toLen = unix.SizeofSockaddrInet6
	}
	var v [4]byte
	native.PutUint32(v[:], uint32(trafficClass))
	b := putControl(w.control[:0], level, class, v[:])
	native.PutUint32(v[:], uint32(hopLimit))
	b = putControl(b, level, limit, v[:])
	w.single = len(b)
	w.segment = len(b) + unix.CmsgLen(0)
	w.all = len(putControl(b, unix.IPPROTO_UDP, unix.UDP_SEGMENT, v[:2]))
}

// sendmmsg calls the kernel. Tests put others in its place.
var sendmmsg = func(fd uintptr, first *mmsghdr, n int) (sent int, errno syscall.Errno) {
	r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(first)), uintptr(n), unix.MSG_DONTWAIT, 0, 0)
	return int(r), errno
}

// sendBatch is what sendmmsg takes.
type sendBatch struct {
	s       *sender
	out     []message
	done    int
	refused bool // the superframe at done, whose first datagram is tried alone
	msgs    [messages]mmsghdr
	iov     [messages]unix.Iovec
	control [messages][controlSpace]byte
	write   func(fd uintptr) // set once, so that calling the kernel allocates nothing
}

func (b *sendBatch) init(s *sender) { b.s, b.write = s, b.writeAll }

// send sends messages from one socket.
func (b *sendBatch) send(out []message) {
	b.out, b.done, b.refused = out, 0, false
	for i := range out {
		m := &out[i]
		w := &m.path.way
		b.iov[i].Base = &b.s.buf[m.start]
		b.iov[i].SetLen(m.end - m.start)
		h := &b.msgs[i].hdr
		*h = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&w.to)), Namelen: w.toLen, Iov: &b.iov[i], Control: &b.control[i][0]}
		h.SetIovlen(1)
		b.control[i] = w.control
		h.SetControllen(w.single)
		if m.segments > 1 {
			native.PutUint16(b.control[i][w.segment:], uint16(m.size))
			h.SetControllen(w.all)
		}
	}
	if err := b.writeTo(out[0].path.out); err != nil {
		for ; b.done < len(out); b.done++ {
			b.s.count(&out[b.done], err)
		}
	}
	clear(b.msgs[:len(out)]) // which point to paths
	b.out = nil
}

func (b *sendBatch) writeTo(o *outlet) error {
	s := o.socket.Load()
	if s == nil {
		return net.ErrClosed
	}
	return s.raw.Control(b.write)
}

// waitForRoom waits until a socket takes something again; false if it has not by the end.
func waitForRoom(fd uintptr, end time.Time) bool {
	p := unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
	for left := time.Until(end); left > 0; left = time.Until(end) {
		atMost := unix.NsecToTimespec(int64(left))
		if n, _, errno := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&atMost)), 0, 0, 0); errno != unix.EINTR {
			return errno == 0 && n > 0
		}
	}
	return false
}

// writeAll calls the kernel until it has taken or refused everything.
func (b *sendBatch) writeAll(fd uintptr) {
	var end time.Time // of waiting for room
	for b.done < len(b.out) {
		n, errno := sendmmsg(fd, &b.msgs[b.done], len(b.out)-b.done)
		m := &b.out[b.done]
		switch {
		case errno == 0 && b.refused: // without the others: it is superframes that are refused
			b.s.port.segments.Store(false)
			b.alone()
			n--
			fallthrough
		case errno == 0:
			for range n {
				b.s.count(&b.out[b.done], nil)
				b.done++
			}
			if m.path.out.full.Load() {
				m.path.out.full.Store(false)
			}
			end = time.Time{}
			continue
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN && !m.path.out.full.Load():
			if end.IsZero() {
				end = time.Now().Add(patience)
			}
			if !waitForRoom(fd, end) { // others fail at once, until here
				m.path.out.full.Store(true)
			}
			continue
		case errno == unix.EIO && m.segments > 1: // a device without checksums cannot cut superframes
			b.s.port.segments.Store(false)
		case errno == unix.EINVAL && m.segments > 1 && !b.refused:
			// Either that, or the segments are longer than the MTU, which the first of them tells by itself. It leaves with the
			// identification that it was given as the first.
			b.refused = true
			b.iov[b.done].SetLen(m.size)
			b.msgs[b.done].hdr.SetControllen(m.path.way.single)
			continue
		}
		b.s.count(m, errno)
		b.done++
		b.refused = false
	}
}

// alone counts the superframe at done, of which the first datagram has left and the others are lost, and goes on to the next.
func (b *sendBatch) alone() {
	m := &b.out[b.done]
	first := message{path: m.path, start: m.start, end: m.start + m.size, segments: 1}
	b.s.count(&first, nil)
	b.s.count(m, unix.EINVAL)
	b.done++
	b.refused = false
}
