package wireguard

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

const (
	// socketBuffer is the size of a socket's buffers in bytes: wireguard-go's.
	socketBuffer = 7 << 20
	// maxSegments is the number of datagrams that Linux accepts in one superframe, and joins in
	// one.
	maxSegments = 64
	// minEndpoints is the number of endpoints that a socket remembers at least.
	minEndpoints = 1 << 10
	// refusalHolds is how long superframes to an endpoint stay smaller after a refusal. Linux has
	// another path MTU after ten minutes; a try costs one system call.
	refusalHolds = 10 * time.Second
)

// socket is an UDP socket of one IP version.
type socket struct {
	*net.UDPConn
	batch *ipv4.PacketConn // its calls below are the same for IPv6
	raw   syscall.RawConn
	gso   bool      // superframes can be sent
	pool  sync.Pool // *[]ipv4.Message, to send

	// Owned by the receiver.
	joined    bool   // the kernel joins datagrams to superframes
	super     []byte // a superframe, and its control messages
	control   []byte
	messages  []ipv4.Message // if not joined
	endpoints endpoints
}

// arrival is where a packet came from, and where it arrived.
type arrival struct {
	from netip.AddrPort
	to   netip.Addr
	intf int
}

// endpoints are the endpoints of recent packets. Anybody can make a packet arrive, so they are
// limited, in two generations: a host that sends on stays, whatever others send.
type endpoints struct {
	recent, older map[arrival]*endpoint
	most          int // in a generation
}

func newEndpoints(most int) endpoints { return endpoints{recent: map[arrival]*endpoint{}, most: most} }

// of returns the endpoint of an arrival.
func (s *endpoints) of(a arrival) *endpoint {
	e := s.recent[a]
	if e != nil && !e.cleared.Load() {
		return e
	}
	if e == nil {
		if len(s.recent) >= s.most {
			s.recent, s.older = make(map[arrival]*endpoint), s.recent
		}
		e = s.older[a]
	}
	// The packet shows that its host reaches the address, also if the address was given up.
	if e == nil || e.cleared.Load() {
		e = newEndpoint(a.from, a.to, a.intf)
	}
	s.recent[a] = e
	return e
}

// openSocket opens a port, on all addresses, for a number of peers. It returns nil if the machine
// does not have the IP version.
func openSocket(network string, port uint16, peers int) (*socket, uint16, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		cerr := c.Control(func(fd uintptr) { err = prepare(int(fd), network) })
		return errors.Join(cerr, err)
	}}
	c, err := config.ListenPacket(context.Background(), network, ":"+strconv.Itoa(int(port)))
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	udp := c.(*net.UDPConn)
	s := &socket{UDPConn: udp, batch: ipv4.NewPacketConn(udp), endpoints: newEndpoints(max(minEndpoints, peers))}
	if s.raw, err = udp.SyscallConn(); err != nil {
		return nil, 0, errors.Join(err, udp.Close())
	}
	s.pool.New = func() any { return s.newMessages(conn.IdealBatchSize, maxSegments) }
	_ = s.raw.Control(func(fd uintptr) {
		_, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT)
		s.gso = err == nil
		// Linux can be asked since 5.12, and has fewer faults since.
		joins, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO)
		s.joined = err == nil && joins == 1
	})
	if s.joined {
		s.super, s.control = make([]byte, 1<<16), make([]byte, controlSpace)
	} else {
		s.messages = *s.newMessages(conn.IdealBatchSize, 1)
		for i := range s.messages {
			s.messages[i].Buffers = s.messages[i].Buffers[:1]
		}
	}
	return s, uint16(udp.LocalAddr().(*net.UDPAddr).Port), nil
}

// prepare sets the options of a socket before it is bound.
func prepare(fd int, network string) error {
	for _, option := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF, unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
		// Up to the system's limit, and beyond it with CAP_NET_ADMIN.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, socketBuffer)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1)
	if network == "udp4" {
		return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
	}
	return errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1),
		unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1))
}

// controlSpace has room for the local address and the size of a superframe's datagrams.
var controlSpace = unix.CmsgSpace(unix.SizeofInet6Pktinfo) + unix.CmsgSpace(4)

func (*socket) newMessages(n, buffers int) *[]ipv4.Message {
	all := make([]ipv4.Message, n)
	for i := range all {
		all[i].Buffers, all[i].OOB = make([][]byte, 0, buffers), make([]byte, controlSpace)
	}
	return &all
}

func (s *socket) close() error {
	if s == nil {
		return nil
	}
	return s.Close()
}

// set sets an option.
func (s *socket) set(level, option, value int) (err error) {
	cerr := s.raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) })
	return errors.Join(cerr, err)
}

// receive is a conn.ReceiveFunc.
func (s *socket) receive(packets [][]byte, sizes []int, from []conn.Endpoint) (n int, err error) {
	if s.joined {
		return s.receiveSuperframe(packets, sizes, from)
	}
	messages := s.messages[:min(len(s.messages), len(packets))]
	for i := range messages {
		m := &messages[i]
		m.Buffers[0], m.OOB = packets[i], m.OOB[:controlSpace]
	}
	n, err = s.batch.ReadBatch(messages, 0)
	if err != nil {
		return 0, err
	}
	for i := range messages[:n] {
		m := &messages[i]
		sizes[i] = m.N
		_, from[i] = s.arrived(m.Addr.(*net.UDPAddr).AddrPort(), m.OOB[:m.NN])
	}
	return n, nil
}

// receiveSuperframe receives one superframe, whose datagrams fit in a batch of the device.
func (s *socket) receiveSuperframe(packets [][]byte, sizes []int, from []conn.Endpoint) (n int, err error) {
	bytes, control, _, at, err := s.ReadMsgUDPAddrPort(s.super, s.control)
	if err != nil {
		return 0, err
	}
	size, e := s.arrived(at, s.control[:control])
	for b := s.super[:bytes]; len(b) > 0 && n < len(packets); n++ {
		part := b
		if size > 0 {
			part = b[:min(size, len(b))]
		}
		sizes[n], from[n] = copy(packets[n], part), e
		b = b[len(part):]
	}
	return n, nil
}

// arrived reads the control messages of a message: the size of its datagrams, if they are several,
// and its endpoint.
func (s *socket) arrived(from netip.AddrPort, control []byte) (size int, _ *endpoint) {
	a := arrival{from: from}
	for rest := control; len(rest) >= unix.SizeofCmsghdr; {
		h, data, remainder, err := unix.ParseOneSocketControlMessage(rest)
		if err != nil {
			break
		}
		rest = remainder
		switch {
		case h.Level == unix.IPPROTO_IP && h.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&data[0]))
			a.to, a.intf = netip.AddrFrom4(info.Spec_dst), int(info.Ifindex)
		case h.Level == unix.IPPROTO_IPV6 && h.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			info := (*unix.Inet6Pktinfo)(unsafe.Pointer(&data[0]))
			a.to, a.intf = netip.AddrFrom16(info.Addr), int(info.Ifindex)
		case h.Level == unix.IPPROTO_UDP && h.Type == unix.UDP_GRO && len(data) >= 4:
			size = int(binary.NativeEndian.Uint32(data))
		}
	}
	return size, s.endpoints.of(a)
}

// send sends packets with a control message, in as few superframes as possible. It returns the
// number of packets that it has sent.
func (s *socket) send(packets [][]byte, to *endpoint, control []byte) (sent int, err error) {
	pooled := s.pool.Get().(*[]ipv4.Message)
	defer s.pool.Put(pooled)
	most := 0 // bytes of the datagrams of a superframe
	if s.gso {
		most = to.superframes()
	}
	refused := false
	for sent < len(packets) {
		for messages := join(*pooled, packets[sent:], to, control, most); len(messages) > 0; {
			n, err := s.batch.WriteBatch(messages, 0)
			if err == nil {
				for i := range messages[:n] {
					sent += len(messages[i].Buffers)
				}
				messages = messages[n:]
				continue
			}
			if len(messages[0].Buffers) == 1 || !refusal(err) {
				return sent, err
			}
			// Linux fragments a datagram that is too long for the route, but not in a superframe.
			most, refused = len(messages[0].Buffers[0])-1, true
			break
		}
	}
	if refused { // and single packets were not
		to.refused.Store(&refusedSize{most + 1, time.Now().Add(refusalHolds)})
	}
	return sent, nil
}

// refusal reports whether Linux sends no superframe: its datagrams are too long for the path
// (EMSGSIZE, formerly EINVAL), or the route's interface cannot cut it (EIO).
func refusal(err error) bool {
	return errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EIO)
}

// refusedSize says that superframes of longer datagrams, or as long ones, are refused.
type refusedSize struct {
	bytes int
	until time.Time
}

// superframes returns the most bytes of a datagram in a superframe to an endpoint.
func (e *endpoint) superframes() int {
	if r := e.refused.Load(); r != nil && time.Now().Before(r.until) {
		return r.bytes - 1
	}
	return maxPayload
}

// join fills messages with packets. Packets of more than a number of bytes are not joined.
func join(messages []ipv4.Message, packets [][]byte, to *endpoint, control []byte, most int) []ipv4.Message {
	n, size, bytes := 0, 0, 0 // messages, and of the last one
	last := false             // no packet may follow in it
	for _, p := range packets {
		if n > 0 && size <= most && !last && len(p) <= size && bytes+len(p) <= maxPayload && len(messages[n-1].Buffers) < maxSegments {
			m := &messages[n-1]
			if len(m.Buffers) == 1 {
				m.OOB = putSize(m.OOB, size)
			}
			m.Buffers = append(m.Buffers, p)
			bytes += len(p)
			last = len(p) < size
			continue
		}
		m := &messages[n]
		*m = ipv4.Message{Buffers: append(m.Buffers[:0], p), OOB: append(m.OOB[:0], control...), Addr: &to.addr}
		n++
		size, bytes, last = len(p), len(p), false
	}
	return messages[:n]
}

// putSize appends the control message that makes the kernel cut a superframe.
func putSize(control []byte, size int) []byte {
	at := len(control)
	control = control[:at+unix.CmsgSpace(2)]
	h := (*unix.Cmsghdr)(unsafe.Pointer(&control[at]))
	h.Level, h.Type = unix.IPPROTO_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(control[at+unix.CmsgLen(0):], uint16(size))
	return control
}
