package rxsocket

// Receiving several superframes with one system call: recvmmsg and UDP_GRO.

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/idle"
)

// setReceiving prepares a socket that will be bound to port 4791. Options that an old kernel lacks
// are skipped.
func setReceiving(fd uintptr, v4 bool) error {
	s := int(fd)
	_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF, SocketBuffer)
	_ = unix.SetsockoptInt(s, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	if v4 {
		return errors.Join(unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_RECVTOS, 1),
			unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_RECVTTL, 1))
	}
	// rxe sends no UDP checksum (RFC 6935), because the ICRC covers more.
	_ = unix.SetsockoptInt(s, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
	return errors.Join(unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1),
		unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
}

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

var native = binary.NativeEndian

const (
	receiveBatch = 8
	drainBatches = 64 // most of one Drain, as datagrams may be arriving without end
)

// batch has the arguments of recvmmsg.
type batch struct {
	msgs    [receiveBatch]mmsghdr
	iov     [receiveBatch]unix.Iovec
	control [receiveBatch][128]byte
	from    [receiveBatch]unix.RawSockaddrInet6
	buf     *[receiveBatch][1 << 16]byte

	// Passed to the receiver. It is a field, because an interface call would make a local variable
	// escape.
	next    Arrival
	pollNow func(fd uintptr) // made once, because a closure allocates
	polledN int              // result of pollNow

	drainNow func(fd uintptr) // the same

	waiter     epollWaiter
	reader     *idle.Reader
	direct     *idle.DirectWait // nil: Go's scheduler waits for datagrams
	pauseTimer *time.Timer      // ends pause
	pollEnded  chan struct{}    // has an element after EndPoll
}

func (s *Socket) init(conn *net.UDPConn) error {
	f, raw, err := DetachNetpoll(conn)
	if err != nil {
		return err
	}
	s.conn, s.raw = f, raw
	b := &s.batch
	if err := b.waiter.init(raw); err != nil {
		_ = f.Close()
		return err
	}
	b.reader = idle.NewReader(&idle.SocketReader, idle.WaitAdaptive)
	b.pollNow = func(fd uintptr) { b.polledN = s.receive(fd, true) }
	b.drainNow = func(fd uintptr) {
		for range drainBatches {
			if s.receive(fd, false) < receiveBatch {
				return
			}
		}
	}
	b.buf = new([receiveBatch][1 << 16]byte)
	b.pauseTimer, b.pollEnded = time.NewTimer(0), make(chan struct{}, 1)
	for i := range b.msgs {
		b.iov[i].Base = &b.buf[i][0]
		b.iov[i].SetLen(len(b.buf[i]))
		h := &b.msgs[i].hdr
		h.Name, h.Control, h.Iov = (*byte)(unsafe.Pointer(&b.from[i])), &b.control[i][0], &b.iov[i]
		h.SetIovlen(1)
	}
	return nil
}

// receive delivers the messages of one recvmmsg, and returns their number, or 0 if there are none.
// mu is held.
func (s *Socket) receive(fd uintptr, polled bool) int {
	b := &s.batch
	for i := range b.msgs {
		b.msgs[i].hdr.Namelen = unix.SizeofSockaddrInet6
		b.msgs[i].hdr.SetControllen(len(b.control[i]))
	}
	var n uintptr
	errno := unix.EINTR
	for errno == unix.EINTR { // otherwise a reader could sleep with datagrams pending
		n, _, errno = unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.msgs[0])), receiveBatch, unix.MSG_DONTWAIT, 0, 0)
	}
	if errno != 0 {
		return 0
	}
	for i := range int(n) {
		b.next = Arrival{}
		b.arrival(i, &b.next)
		s.receiver.Deliver(&b.next, polled)
	}
	return int(n)
}

// arrival parses one of the messages.
func (b *batch) arrival(i int, a *Arrival) {
	m := &b.msgs[i]
	a.Payload = b.buf[i][:min(int(m.n), len(b.buf[i]))]
	from := &b.from[i]
	var port [2]byte
	native.PutUint16(port[:], from.Port)
	if from.Family == unix.AF_INET {
		ip := netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(from)).Addr)
		a.From = netip.AddrPortFrom(ip, binary.BigEndian.Uint16(port[:]))
	} else {
		a.From = netip.AddrPortFrom(netip.AddrFrom16(from.Addr), binary.BigEndian.Uint16(port[:]))
	}
	if m.hdr.Flags&unix.MSG_TRUNC != 0 {
		a.Payload = nil // malformed
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
			a.Segment = int(native.Uint32(v))
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TOS:
			a.TrafficClass = v[0]
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_TTL && n >= 4:
			a.TTL = uint8(native.Uint32(v))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_TCLASS && n >= 4:
			a.TrafficClass = uint8(native.Uint32(v))
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_HOPLIMIT && n >= 4:
			a.TTL = uint8(native.Uint32(v))
		}
		c = c[min(unix.CmsgSpace(n), len(c)):]
	}
}

// Run receives until the socket is closed.
func (s *Socket) Run() {
	waiter := &s.batch.waiter
	_ = s.raw.Control(func(fd uintptr) {
		_ = waiter.raw.Read(func(epoll uintptr) bool {
			waiter.disarm(epoll)
			for !s.ended.Load() {
				if s.receiver.Polling() {
					s.batch.reader.Stop()
					s.pause()
					continue
				}
				s.mu.Lock()
				n := s.receive(fd, false)
				s.mu.Unlock()
				if s.sleeps(fd, n) {
					waiter.arm(epoll, fd)
					return false
				}
			}
			return true
		})
	})
}

// sleeps reports whether Run should sleep after n datagrams of one call.
func (s *Socket) sleeps(fd uintptr, n int) bool {
	b := &s.batch
	if b.direct != nil {
		return n < receiveBatch && !awaitDirectly(b.direct, fd) && n == 0
	}
	if n > 0 {
		b.reader.Received(false)
		return false
	}
	return b.reader.Empty()
}

// Close ends reception. The kernel closes the socket soon after that, when Run has returned.
func (s *Socket) Close() {
	s.ended.Store(true)
	_ = s.batch.waiter.file.Close()
	_ = s.conn.Close()
}

// pauseTime is the time that Run pauses before it checks whether an application still polls.
var pauseTime = idle.PollingEndsAfter

// pause waits for pauseTime or EndPoll.
func (s *Socket) pause() {
	s.batch.pauseTimer.Reset(pauseTime)
	select {
	case <-s.batch.pollEnded:
	case <-s.batch.pauseTimer.C:
	}
}

// drainTime is how long Drain waits for another goroutine that is receiving.
const drainTime = time.Millisecond

// Drain receives what has arrived by now, on the goroutine of the caller. If another goroutine is
// receiving, it waits for that first, but not for long: that one may be waiting for the caller.
func (s *Socket) Drain() {
	for end := time.Now().Add(drainTime); !s.mu.TryLock(); runtime.Gosched() {
		if time.Now().After(end) {
			return
		}
	}
	defer s.mu.Unlock()
	_ = s.raw.Control(s.batch.drainNow)
}

// EndPoll makes Run receive again at once. Receiver.Polling must return false by then.
func (s *Socket) EndPoll() {
	select {
	case s.batch.pollEnded <- struct{}{}:
	default:
	}
}

// Poll receives on the goroutine of the caller. It returns false if there was nothing, or if
// another goroutine is receiving.
func (s *Socket) Poll() bool {
	if !s.mu.TryLock() {
		return false
	}
	defer s.mu.Unlock()
	s.batch.polledN = 0
	_ = s.raw.Control(s.batch.pollNow)
	return s.batch.polledN > 0
}
