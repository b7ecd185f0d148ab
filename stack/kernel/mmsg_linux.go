package kernel

// Sending and receiving several superframes with one system call: sendmmsg, recvmmsg, UDP_SEGMENT and UDP_GRO.

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setReceiving prepares a socket that is to be bound to port 4791. What an old kernel lacks is done without.
func setReceiving(fd uintptr, v4 bool) error {
	s := int(fd)
	_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
	_ = unix.SetsockoptInt(s, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	if v4 {
		return errors.Join(unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_RECVTOS, 1), unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_RECVTTL, 1))
	}
	// rxe sends no UDP checksum (RFC 6935): the ICRC covers more.
	_ = unix.SetsockoptInt(s, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
	return errors.Join(unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1), unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
}

// setSending prepares a socket for sending. It must not fragment: the ICRC covers the flag, and the identification, which is 0
// with it.
func setSending(fd uintptr, v4 bool) error {
	s := int(fd)
	_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
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
	write   func(fd uintptr) bool // set once, so that calling the kernel allocates nothing
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
	if err := out[0].path.out.raw.Write(b.write); err != nil {
		for ; b.done < len(out); b.done++ {
			b.s.count(&out[b.done], err)
		}
	}
	clear(b.msgs[:len(out)]) // which point to paths
	b.out = nil
}

// writeAll calls the kernel until it has taken or refused everything; false if it has to wait for room.
func (b *sendBatch) writeAll(fd uintptr) bool {
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
			continue
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return false
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
	return true
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

const receiveBatch = 8

// batch is what recvmmsg takes.
type batch struct {
	msgs    [receiveBatch]mmsghdr
	iov     [receiveBatch]unix.Iovec
	control [receiveBatch][128]byte
	from    [receiveBatch]unix.RawSockaddrInet6
	buf     *[receiveBatch][1 << 16]byte

	pollNow func(fd uintptr) // set once, so that calling the kernel allocates nothing
	polledN int              // what it has returned
}

func (b *batch) init(in *inlet) {
	b.pollNow = func(fd uintptr) { b.polledN = in.receive(fd, true) }
	b.buf = new([receiveBatch][1 << 16]byte)
	for i := range b.msgs {
		b.iov[i].Base = &b.buf[i][0]
		b.iov[i].SetLen(len(b.buf[i]))
		h := &b.msgs[i].hdr
		h.Name, h.Control, h.Iov = (*byte)(unsafe.Pointer(&b.from[i])), &b.control[i][0], &b.iov[i]
		h.SetIovlen(1)
	}
}

// receive delivers what one recvmmsg brings, and returns how many messages that were; 0 if there is nothing. mu is held.
func (in *inlet) receive(fd uintptr, polled bool) int {
	b := &in.batch
	for i := range b.msgs {
		b.msgs[i].hdr.Namelen = unix.SizeofSockaddrInet6
		b.msgs[i].hdr.SetControllen(len(b.control[i]))
	}
	var n uintptr
	errno := unix.EINTR
	for errno == unix.EINTR { // who waits for more when there is something is not woken
		n, _, errno = unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.msgs[0])), receiveBatch, unix.MSG_DONTWAIT, 0, 0)
	}
	if errno != 0 {
		return 0
	}
	for i := range int(n) {
		var a arrival
		b.arrival(i, &a)
		in.deliver(&a, polled)
	}
	return int(n)
}

// arrival reads one of the messages.
func (b *batch) arrival(i int, a *arrival) {
	m := &b.msgs[i]
	a.payload = b.buf[i][:min(int(m.n), len(b.buf[i]))]
	from := &b.from[i]
	var port [2]byte
	native.PutUint16(port[:], from.Port)
	if from.Family == unix.AF_INET {
		a.from = netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(from)).Addr), binary.BigEndian.Uint16(port[:]))
	} else {
		a.from = netip.AddrPortFrom(netip.AddrFrom16(from.Addr), binary.BigEndian.Uint16(port[:]))
	}
	if m.hdr.Flags&unix.MSG_TRUNC != 0 {
		a.payload = nil // malformed
	}
	for c := b.control[i][:min(int(m.hdr.Controllen), len(b.control[i]))]; len(c) >= unix.CmsgLen(0); {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
		n := int(h.Len) - unix.CmsgLen(0)
		v := c[unix.CmsgLen(0):]
		if n < 1 || n > len(v) {
			break
		}
		switch {
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && n >= 4:
			a.segment = int(native.Uint32(v))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS:
			a.trafficClass = v[0]
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL && n >= 4:
			a.ttl = uint8(native.Uint32(v))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && n >= 4:
			a.trafficClass = uint8(native.Uint32(v))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT && n >= 4:
			a.ttl = uint8(native.Uint32(v))
		}
		c = c[min(unix.CmsgSpace(n), len(c)):]
	}
}

// run receives until the socket is closed.
func (in *inlet) run() {
	p := in.port
	_ = in.raw.Read(func(fd uintptr) bool {
		for !p.closed.Load() && !in.ended.Load() {
			if p.isPolled() {
				time.Sleep(time.Millisecond)
				continue
			}
			in.mu.Lock()
			n := in.receive(fd, false)
			in.mu.Unlock()
			if n == 0 {
				return false
			}
		}
		return true
	})
}

// poll receives what has come, on the goroutine of the caller.
func (in *inlet) poll() bool {
	if !in.mu.TryLock() {
		return false // somebody else is at it
	}
	defer in.mu.Unlock()
	in.batch.polledN = 0
	_ = in.raw.Control(in.batch.pollNow)
	return in.batch.polledN > 0
}
