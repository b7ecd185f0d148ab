// Package inlet has the sockets that RoCE packets come in by: UDP port 4791 of one of the machine's addresses, or of a multicast
// group.
package inlet

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/stack"
)

// SocketBuffer is how many bytes are asked for as a socket's buffer. The kernel may give less.
const SocketBuffer = 4 << 20

// Arrival is what one read of a socket has brought: a datagram, or several of one size in a row. Payload is valid during the
// call that it is handed to.
type Arrival struct {
	Payload           []byte // empty if it was cut off
	From              netip.AddrPort
	TrafficClass, TTL uint8
	Segment           int // payload bytes of each datagram but the last; 0 if there is one only
}

// Receiver gets what comes. Deliver is called with the socket's lock held (see [Socket.Do]); polled says that Poll was called.
type Receiver interface {
	Deliver(a *Arrival, polled bool)
	// Polled tells whether somebody calls Poll again and again. Run stays away then.
	Polled() bool
}

// Socket receives what comes to one address, or to one multicast group.
type Socket struct {
	addr     netip.Addr
	conn     io.Closer
	raw      syscall.RawConn
	receiver Receiver
	ended    atomic.Bool // nothing is received any more

	mu    sync.Mutex // held while datagrams are received
	batch batch
}

// Open opens the socket of an address, of the interface of this name where the address needs a zone. The error wraps EADDRINUSE
// if another process has it, and says what to do about that.
func Open(a netip.Addr, zone string, r Receiver) (*Socket, error) {
	conn, _, err := Bind(Zoned(netip.AddrPortFrom(a, stack.RoCEPort), zone), setReceiving)
	if err != nil {
		return nil, bindError(a, err)
	}
	return newSocket(a, conn, r)
}

// OpenGroup opens a socket for a multicast group on the interface of this index. Any number of processes may be in the same
// group.
func OpenGroup(group netip.Addr, index int, r Receiver) (*Socket, error) {
	conn, err := listenGroup(group, index)
	if err != nil {
		return nil, err
	}
	return newSocket(group, conn, r)
}

func newSocket(a netip.Addr, conn *net.UDPConn, r Receiver) (*Socket, error) {
	s := &Socket{addr: a, receiver: r}
	if err := s.init(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return s, nil
}

// Bind opens a UDP socket at an address of the machine, which set prepares before it is bound. Port 0 is one that the kernel
// chooses.
func Bind(at netip.AddrPort, set func(fd uintptr, v4 bool) error) (*net.UDPConn, syscall.RawConn, error) {
	network, v4 := "udp6", at.Addr().Is4()
	if v4 {
		network = "udp4"
	}
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = set(fd, v4) })
		return errors.Join(err, failed)
	}}
	c, err := cfg.ListenPacket(context.Background(), network, at.String())
	if err != nil {
		return nil, nil, err
	}
	conn := c.(*net.UDPConn)
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, raw, nil
}

// Zoned gives a link-local address the name of an interface as its zone, which the kernel needs.
func Zoned(a netip.AddrPort, zone string) netip.AddrPort {
	if ip := a.Addr(); ip.Is6() && ip.Zone() == "" && (ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsInterfaceLocalMulticast()) {
		return netip.AddrPortFrom(ip.WithZone(zone), a.Port())
	}
	return a
}

// Addr is the address, without a zone, or the group.
func (s *Socket) Addr() netip.Addr { return s.addr }

// Raw is the socket itself.
func (s *Socket) Raw() syscall.RawConn { return s.raw }

// Do calls f while nothing is received.
func (s *Socket) Do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}
