// Package rxsocket provides the sockets for receiving RoCE packets: UDP port 4791 of one of the
// machine's addresses, or of a multicast group.
package rxsocket

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/stack"
)

// SocketBuffer is the requested size of a socket's buffer in bytes. The kernel may give less.
const SocketBuffer = 4 << 20

// Arrival is the result of one read of a socket: one datagram, or several consecutive ones of equal
// size. Payload is valid only during the call of Deliver.
type Arrival struct {
	Payload           []byte // empty if it was truncated
	From              netip.AddrPort
	TrafficClass, TTL uint8
	Segment           int // payload bytes of each datagram but the last; 0 for a single datagram
}

// Receiver receives arrivals. Deliver is called with the socket's lock held (see [Socket.Do]).
// polled says that it is called by Poll.
type Receiver interface {
	Deliver(a *Arrival, polled bool)
	// Polling reports whether an application polls. Run then pauses.
	Polling() bool
}

// Socket receives datagrams to one address, or to one multicast group.
type Socket struct {
	addr     netip.Addr
	conn     io.Closer
	raw      syscall.RawConn
	receiver Receiver
	ended    atomic.Bool // reception has ended

	mu    sync.Mutex // held while datagrams are received
	batch batch
}

// Open opens the socket of an address. zone names the interface, for addresses that need one. The
// error wraps EADDRINUSE if another process has the port, and gives advice.
func Open(a netip.Addr, zone string, r Receiver) (*Socket, error) {
	conn, _, err := Bind(Zoned(netip.AddrPortFrom(a, stack.RoCEPort), zone), setReceiving)
	if err != nil {
		return nil, bindError(a, err)
	}
	return newSocket(a, conn, r)
}

// OpenFile receives from a socket that another process has opened for this one, at an address: see
// Steered.Add. It closes f.
func OpenFile(a netip.Addr, f *os.File, r Receiver) (*Socket, error) {
	defer f.Close()
	return Duplicate(a, f, r)
}

// Duplicate is OpenFile, but leaves f open.
func Duplicate(a netip.Addr, f *os.File, r Receiver) (*Socket, error) {
	c, err := net.FilePacketConn(f) // duplicates the descriptor
	if err != nil {
		return nil, err
	}
	conn, ok := c.(*net.UDPConn)
	if !ok {
		_ = c.Close()
		return nil, syscall.EINVAL
	}
	return newSocket(a, conn, r)
}

// OpenGroup opens a socket for a multicast group on the interface of this index. Any number of
// processes may be in the same group.
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

// Bind opens a UDP socket at an address of the machine. set prepares the socket before it is bound.
// For port 0 the kernel chooses the port.
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

// Zoned adds an interface name as the zone of a link-local address, which the kernel needs.
func Zoned(a netip.AddrPort, zone string) netip.AddrPort {
	ip := a.Addr()
	needed := ip.IsLinkLocalUnicast() || ip.IsLinkLocalMulticast() || ip.IsInterfaceLocalMulticast()
	if ip.Is6() && ip.Zone() == "" && needed {
		return netip.AddrPortFrom(ip.WithZone(zone), a.Port())
	}
	return a
}

// Addr returns the address, without a zone, or the group.
func (s *Socket) Addr() netip.Addr { return s.addr }

// Raw returns the underlying socket.
func (s *Socket) Raw() syscall.RawConn { return s.raw }

// Do calls f while nothing is being received.
func (s *Socket) Do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}
