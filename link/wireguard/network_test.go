package wireguard_test

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// network carries encrypted packets between links in this process. The zero network loses nothing.
type network struct {
	mu    sync.Mutex
	nodes map[netip.AddrPort]*socket
	// disturb returns what arrives instead of a packet; nil: the packet itself. It may keep the
	// packet.
	disturb func(from, to netip.AddrPort, packet []byte) [][]byte
	seen    func(packet []byte)
}

// socket is a node's place in a network. It implements conn.Bind.
type socket struct {
	net    *network
	addr   netip.AddrPort // guarded by net.mu
	queue  chan arrival
	closed chan struct{}
}

type arrival struct {
	from   netip.AddrPort
	packet []byte // nil: the socket fails
}

// endpoint is an address in a network.
type endpoint struct{ netip.AddrPort }

func (endpoint) ClearSrc()             {}
func (endpoint) SrcToString() string   { return "" }
func (e endpoint) DstToString() string { return e.String() }
func (e endpoint) DstToBytes() []byte  { b, _ := e.MarshalBinary(); return b }
func (e endpoint) DstIP() netip.Addr   { return e.Addr() }
func (endpoint) SrcIP() netip.Addr     { return netip.Addr{} }

var _ conn.Bind = (*socket)(nil)

// at returns a socket at an address.
func (n *network) at(addr string) *socket {
	s := &socket{net: n, addr: netip.MustParseAddrPort(addr)}
	s.queue, s.closed = make(chan arrival, 4096), make(chan struct{})
	return s
}

// move gives a socket another address.
func (s *socket) move(addr string) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	delete(s.net.nodes, s.addr)
	s.addr = netip.MustParseAddrPort(addr)
	s.net.nodes[s.addr] = s
}

// inject sends a packet with any source.
func (n *network) inject(from, to netip.AddrPort, packet []byte) {
	n.mu.Lock()
	s := n.nodes[to]
	n.mu.Unlock()
	if s != nil {
		select {
		case s.queue <- arrival{from, slices.Clone(packet)}:
		default: // lost
		}
	}
}

// fail makes the reception at an address fail so many times in a row.
func (n *network) fail(at netip.AddrPort, times int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for range times {
		n.nodes[at].queue <- arrival{}
	}
}

func (s *socket) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if s.net.nodes == nil {
		s.net.nodes = map[netip.AddrPort]*socket{}
	}
	s.net.nodes[s.addr] = s
	s.closed = make(chan struct{})
	return []conn.ReceiveFunc{s.receive}, s.addr.Port(), nil
}

func (s *socket) receive(packets [][]byte, sizes []int, from []conn.Endpoint) (n int, err error) {
	take := func(a arrival) {
		sizes[n], from[n] = copy(packets[n], a.packet), endpoint{a.from}
		n++
	}
	select {
	case <-s.closed:
		return 0, net.ErrClosed
	case a := <-s.queue:
		if a.packet == nil {
			return 0, errors.New("a datagram cannot be received")
		}
		take(a)
	}
	for n < len(packets) {
		select {
		case a := <-s.queue:
			take(a)
			continue
		default:
		}
		break
	}
	return n, nil
}

func (s *socket) Send(packets [][]byte, to conn.Endpoint) error {
	s.net.mu.Lock()
	from, disturb, seen := s.addr, s.net.disturb, s.net.seen
	s.net.mu.Unlock()
	dst := to.(endpoint).AddrPort
	for _, p := range packets {
		if seen != nil {
			seen(p)
		}
		if disturb == nil {
			s.net.inject(from, dst, p)
			continue
		}
		for _, q := range disturb(from, dst, slices.Clone(p)) {
			s.net.inject(from, dst, q)
		}
	}
	return nil
}

func (s *socket) ParseEndpoint(text string) (conn.Endpoint, error) {
	a, err := netip.ParseAddrPort(text)
	return endpoint{a}, err
}

func (s *socket) Close() error {
	s.net.mu.Lock()
	defer s.net.mu.Unlock()
	if s.net.nodes[s.addr] == s {
		delete(s.net.nodes, s.addr)
		close(s.closed)
	}
	return nil
}

func (*socket) SetMark(uint32) error { return nil }
func (*socket) BatchSize() int       { return conn.IdealBatchSize }

// open opens a link in a bubble.
func open(t testing.TB, cfg *wireguard.Config) *wireguard.Link {
	t.Helper()
	return stacktest.Kept(must(wireguard.Open(cfg))(t))
}
