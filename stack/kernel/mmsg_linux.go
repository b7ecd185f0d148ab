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

	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// outConn is a socket for sending.
type outConn = os.File

func newOutConn(udp *net.UDPConn) (*outConn, syscall.RawConn, error) {
	return rxsocket.DetachNetpoll(udp)
}

// setSending prepares a socket for sending. Packets must not be fragmented: the ICRC covers the
// Don't Fragment flag and the identification, which is then 0.
func setSending(fd uintptr, v4 bool) error {
	s := int(fd)
	_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_SNDBUF, rxsocket.SocketBuffer)
	// Unused; the kernel raises it to its minimum.
	_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF, 0)
	if v4 {
		return unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	}
	return unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
}

// canSegment reports whether the kernel cuts superframes. A gVisor sandbox lets the option be set
// but not read, and then fails to send.
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

// destination is a path's destination in the kernel's format.
type destination struct {
	to      unix.RawSockaddrInet6 // or the shorter RawSockaddrInet4
	toLen   uint32
	control [controlSpace]byte // traffic class, hop limit, and UDP_SEGMENT
	single  int                // bytes of control without UDP_SEGMENT
	all     int
	segment int // offset of the segment size in control
}

func (w *destination) init(to netip.AddrPort, index int, trafficClass, hopLimit uint8) {
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

// sendmmsg calls the kernel. Tests replace it.
var sendmmsg = func(fd uintptr, first *mmsghdr, n int) (sent int, errno syscall.Errno) {
	r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(first)), uintptr(n), unix.MSG_DONTWAIT, 0, 0)
	return int(r), errno
}

// sendBatch has the arguments of sendmmsg.
type sendBatch struct {
	s    *sender
	out  []message
	done int
	// The kernel refused the superframe at done. Its first datagram is tried alone.
	refused bool
	msgs    [maxMessages]mmsghdr
	iov     [maxMessages]unix.Iovec
	control [maxMessages][controlSpace]byte
	write   func(fd uintptr) // made once, because a closure allocates
}

func (b *sendBatch) init(s *sender) { b.s, b.write = s, b.writeAll }

// send sends messages from one socket.
func (b *sendBatch) send(out []message) {
	b.out, b.done, b.refused = out, 0, false
	for i := range out {
		m := &out[i]
		w := &m.path.dest
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
	clear(b.msgs[:len(out)]) // drop the references to paths
	b.out = nil
}

func (b *sendBatch) writeTo(o *sourcePort) error {
	s := o.socket.Load()
	if s == nil {
		return net.ErrClosed
	}
	return s.raw.Control(b.write)
}

// waitForRoom waits until a socket is writable. It returns false at the deadline.
func waitForRoom(fd uintptr, end time.Time) bool {
	p := unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
	for left := time.Until(end); left > 0; left = time.Until(end) {
		atMost := unix.NsecToTimespec(int64(left))
		n, _, errno := unix.Syscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&atMost)), 0, 0, 0)
		if errno != unix.EINTR {
			return errno == 0 && n > 0
		}
	}
	return false
}

// writeAll calls the kernel until it has accepted or refused all messages.
func (b *sendBatch) writeAll(fd uintptr) {
	var end time.Time // until when to wait for room
	for b.done < len(b.out) {
		n, errno := sendmmsg(fd, &b.msgs[b.done], len(b.out)-b.done)
		m := &b.out[b.done]
		switch {
		// The first datagram alone was sent, so the kernel refuses superframes.
		case errno == 0 && b.refused:
			b.s.port.segments.Store(false)
			b.countFirstOnly()
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
				end = time.Now().Add(sendTimeout)
			}
			// While the socket is full, datagrams of other senders are lost at once.
			if !waitForRoom(fd, end) {
				m.path.out.full.Store(true)
			}
			continue
		case errno == unix.EIO && m.segments > 1: // a device without checksums cannot cut superframes
			b.s.port.segments.Store(false)
		case errno == unix.EINVAL && m.segments > 1 && !b.refused:
			// Either the kernel refuses superframes, or the segments exceed the MTU. To find out, the first
			// datagram is sent alone. Its identification is valid, because it is the first.
			b.refused = true
			b.iov[b.done].SetLen(m.size)
			b.msgs[b.done].hdr.SetControllen(m.path.dest.single)
			continue
		}
		b.s.count(m, errno)
		b.done++
		b.refused = false
	}
}

// countFirstOnly counts the superframe at done, and skips it. Its first datagram was sent, and the
// others are lost.
func (b *sendBatch) countFirstOnly() {
	m := &b.out[b.done]
	first := message{path: m.path, start: m.start, end: m.start + m.size, segments: 1}
	b.s.count(&first, nil)
	b.s.count(m, unix.EINVAL)
	b.done++
	b.refused = false
}
