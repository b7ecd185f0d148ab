package inlet

// Receiving several superframes with one system call: recvmmsg and UDP_GRO.

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setReceiving prepares a socket that is to be bound to port 4791. What an old kernel lacks is done without.
func setReceiving(fd uintptr, v4 bool) error {
	s := int(fd)
	_ = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_RCVBUF, SocketBuffer)
	_ = unix.SetsockoptInt(s, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	if v4 {
		return errors.Join(unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_RECVTOS, 1), unix.SetsockoptInt(s, unix.IPPROTO_IP, unix.IP_RECVTTL, 1))
	}
	// rxe sends no UDP checksum (RFC 6935): the ICRC covers more.
	_ = unix.SetsockoptInt(s, unix.IPPROTO_UDP, unix.UDP_NO_CHECK6_RX, 1)
	return errors.Join(unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1), unix.SetsockoptInt(s, unix.IPPROTO_IPV6, unix.IPV6_RECVHOPLIMIT, 1))
}

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

var native = binary.NativeEndian

// A batch is what one recvmmsg takes: one message while nothing comes, so that none is looked for in vain behind one that comes
// alone; twice as many after each batch that is full; but of superframes two, a short and a long one, which are best processed
// while they are in the processor's cache.
const (
	receiveBatch   = 8
	bulkBatch      = 2
	bulkBatchBytes = 32 << 10
)

// batch is what recvmmsg takes.
type batch struct {
	msgs    [receiveBatch]mmsghdr
	iov     [receiveBatch]unix.Iovec
	control [receiveBatch][128]byte
	from    [receiveBatch]unix.RawSockaddrInet6
	buf     *[receiveBatch][1 << 16]byte

	limit   int              // messages that the next recvmmsg takes
	bulk    bool             // the last one has brought a superframe
	idle    uint             // polls that have brought nothing
	next    Arrival          // that is handed out; here, as calling an interface would have it allocated
	pollNow func(fd uintptr) // set once, so that calling the kernel allocates nothing
	polledN int              // what it has returned
}

func (b *batch) init(s *Socket) {
	b.pollNow = func(fd uintptr) { b.polledN = s.receive(fd, true) }
	b.limit = 1
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
func (s *Socket) receive(fd uintptr, polled bool) int {
	b := &s.batch
	for i := range b.limit {
		b.msgs[i].hdr.Namelen = unix.SizeofSockaddrInet6
		b.msgs[i].hdr.SetControllen(len(b.control[i]))
	}
	var n uintptr
	errno := unix.EINTR
	for errno == unix.EINTR { // who waits for more when there is something is not woken
		// It does not wait: the runtime need not know of it.
		n, _, errno = unix.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.msgs[0])), uintptr(b.limit), unix.MSG_DONTWAIT, 0, 0)
	}
	if errno != 0 {
		b.limit = 1
		return 0
	}
	b.adapt(int(n))
	for i := range int(n) {
		b.next = Arrival{}
		b.arrival(i, &b.next)
		s.receiver.Deliver(&b.next, polled)
	}
	return int(n)
}

// adapt chooses the limit of the next batch after one of n messages.
func (b *batch) adapt(n int) {
	bytes := 0
	for i := range n {
		bytes += int(b.msgs[i].n)
	}
	b.bulk = bytes >= bulkBatchBytes
	switch {
	case b.bulk:
		b.limit = bulkBatch
	case n == b.limit:
		b.limit = min(2*b.limit, receiveBatch)
	}
}

// arrival reads one of the messages.
func (b *batch) arrival(i int, a *Arrival) {
	m := &b.msgs[i]
	a.Payload = b.buf[i][:min(int(m.n), len(b.buf[i]))]
	from := &b.from[i]
	var port [2]byte
	native.PutUint16(port[:], from.Port)
	if from.Family == unix.AF_INET {
		a.From = netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(from)).Addr), binary.BigEndian.Uint16(port[:]))
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

// After traffic, Run lets those run whom it has woken, and then looks for more for spinTime before it sleeps: waking it up costs
// the sender and the receiver more than what comes. But each runtime.Gosched may wake a thread that looks for work and takes a
// processor from somebody, so that between superframes, which come by the thousand, it happens once in goschedInterval only.
const (
	spinTime        = 50 * time.Microsecond
	goschedInterval = 500 * time.Microsecond
)

// While somebody polls, Run looks every nap whether he still does.
const nap = time.Millisecond

// Run receives until the socket is closed.
func (s *Socket) Run() {
	_ = s.raw.Read(func(fd uintptr) bool { // false: wait until the socket is readable
		var until, yielded time.Time // when spinning ends, zero while traffic comes
		traffic := false             // since other goroutines were last let run
		for !s.ended.Load() {
			if s.receiver.Polled() {
				time.Sleep(nap)
				continue
			}
			s.mu.Lock()
			n, bulk := s.receive(fd, false), s.batch.bulk
			s.mu.Unlock()
			if n > 0 {
				traffic, until = true, time.Time{}
				continue
			}
			now := time.Now()
			if traffic && until.IsZero() {
				until = now.Add(spinTime)
			}
			spinning := now.Before(until)
			switch {
			case traffic && (!bulk || !spinning || now.Sub(yielded) >= goschedInterval):
				traffic, yielded = false, now
				runtime.Gosched()
			case spinning:
				yield()
			default:
				return false
			}
		}
		return true
	})
}

// While polls find nothing, another thread is let run on this processor once in yieldPolls, and another goroutine once in
// goschedPolls, with GOMAXPROCS 1 once in goschedPollsOneP. Under a real-time scheduler, or with GOMAXPROCS 1, nothing else lets
// them run, be it those that have the packet that is waited for.
const (
	yieldPolls       = 32
	goschedPolls     = 512
	goschedPollsOneP = 8
)

// Poll receives what has come, on the goroutine of the caller; false if there was nothing, or somebody else receives it.
func (s *Socket) Poll() bool {
	if !s.mu.TryLock() {
		runtime.Gosched()
		return false
	}
	b := &s.batch
	b.polledN = 0
	_ = s.raw.Control(b.pollNow)
	n := b.polledN
	if n == 0 {
		b.idle++
	}
	idle := b.idle
	s.mu.Unlock()
	if n > 0 {
		return true
	}
	if idle%yieldPolls == 0 {
		yield()
	}
	if idle%goschedPolls == 0 || idle%goschedPollsOneP == 0 && runtime.GOMAXPROCS(0) == 1 {
		runtime.Gosched()
	}
	return false
}

// yield lets another thread run on this processor. It is a system call that returns at once, so the runtime need not know of it.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }
