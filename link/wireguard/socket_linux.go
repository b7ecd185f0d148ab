package wireguard

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
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
	// maxPayload is the most bytes of a superframe.
	maxPayload = 65535 - 20 - 8
	// maxEndpoints is the number of endpoints that a socket remembers. Then it forgets all.
	maxEndpoints = 1 << 10
	// superframes are read at a time, so that their datagrams fit in a batch of the device.
	superframes = conn.IdealBatchSize / maxSegments
)

// socket is an UDP socket of one IP version.
type socket struct {
	*net.UDPConn
	batch *ipv4.PacketConn // its calls below are the same for IPv6
	raw   syscall.RawConn
	gso   atomic.Bool // superframes can be sent
	pool  sync.Pool   // *[]ipv4.Message, to send

	// Owned by the receiver.
	joined    bool // the kernel joins datagrams to superframes
	messages  []ipv4.Message
	endpoints map[arrival]*endpoint
}

// arrival is where a packet came from, and where it arrived.
type arrival struct {
	from netip.AddrPort
	to   netip.Addr
	intf int
}

// openSocket opens a port, on all addresses. It returns nil if the machine does not have the IP
// version.
func openSocket(network string, port uint16) (*socket, uint16, error) {
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
	s := &socket{UDPConn: udp, batch: ipv4.NewPacketConn(udp), endpoints: map[arrival]*endpoint{}}
	if s.raw, err = udp.SyscallConn(); err != nil {
		return nil, 0, errors.Join(err, udp.Close())
	}
	s.pool.New = func() any { return s.newMessages(conn.IdealBatchSize, maxSegments) }
	_ = s.raw.Control(func(fd uintptr) {
		_, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT)
		s.gso.Store(err == nil)
		// Linux can be asked since 5.12, and has fewer faults since.
		joins, err := unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO)
		s.joined = err == nil && joins == 1
	})
	n := conn.IdealBatchSize
	if s.joined {
		n = superframes
	}
	s.messages = *s.newMessages(n, 1)
	for i := range s.messages {
		s.messages[i].Buffers = s.messages[i].Buffers[:1]
		if s.joined {
			s.messages[i].Buffers[0] = make([]byte, 1<<16)
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
	messages := s.messages[:min(len(s.messages), len(packets))]
	for i := range messages {
		m := &messages[i]
		if !s.joined {
			m.Buffers[0] = packets[i]
		}
		m.OOB = m.OOB[:controlSpace]
	}
	count, err := s.batch.ReadBatch(messages, 0)
	if err != nil {
		return 0, err
	}
	for i := range messages[:count] {
		m := &messages[i]
		size, e := s.arrived(m)
		if !s.joined {
			sizes[i], from[i] = m.N, e
			n++
			continue
		}
		for b := m.Buffers[0][:m.N]; len(b) > 0 && n < len(packets); n++ {
			part := b
			if size > 0 {
				part = b[:min(size, len(b))]
			}
			sizes[n], from[n] = copy(packets[n], part), e
			b = b[len(part):]
		}
	}
	return n, nil
}

// arrived reads the control messages of a message: the size of its datagrams, if they are several,
// and its endpoint.
func (s *socket) arrived(m *ipv4.Message) (size int, _ *endpoint) {
	a := arrival{from: m.Addr.(*net.UDPAddr).AddrPort()}
	for rest := m.OOB[:m.NN]; len(rest) >= unix.SizeofCmsghdr; {
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
	e := s.endpoints[a]
	if e == nil {
		if len(s.endpoints) >= maxEndpoints {
			clear(s.endpoints)
		}
		e = newEndpoint(a.from, a.to, a.intf)
		s.endpoints[a] = e
	}
	return size, e
}

// send sends packets with a control message, in as few superframes as possible.
func (s *socket) send(packets [][]byte, to *endpoint, control []byte) error {
	gso := s.gso.Load()
	err := s.write(packets, to, control, gso)
	if err == nil || !gso {
		return err
	}
	if errors.Is(err, unix.EIO) { // the interface cannot cut them
		s.gso.Store(false)
	}
	// Linux fragments a datagram that is too long for the route, and refuses superframes of such.
	return s.write(packets, to, control, false)
}

func (s *socket) write(packets [][]byte, to *endpoint, control []byte, gso bool) error {
	pooled := s.pool.Get().(*[]ipv4.Message)
	defer s.pool.Put(pooled)
	for messages := join(*pooled, packets, to, control, gso); len(messages) > 0; {
		n, err := s.batch.WriteBatch(messages, 0)
		if err != nil {
			return err
		}
		messages = messages[n:]
	}
	return nil
}

// join fills messages with packets.
func join(messages []ipv4.Message, packets [][]byte, to *endpoint, control []byte, gso bool) []ipv4.Message {
	n, size, bytes := 0, 0, 0 // messages, and of the last one
	last := false             // no packet may follow in it
	for _, p := range packets {
		if n > 0 && gso && !last && len(p) <= size && bytes+len(p) <= maxPayload && len(messages[n-1].Buffers) < maxSegments {
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
