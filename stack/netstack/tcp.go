package netstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/header/parse"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"

	"github.com/softrnic/softrnic/stack"
)

// DialStream opens a TCP connection. If laddr is invalid or its port is 0, the host chooses. Errors
// wrap the context's error, or the errno: ECONNREFUSED, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH,
// EADDRNOTAVAIL, or ENOBUFS if TCPMemory is used up.
func (h *Host) DialStream(ctx context.Context, laddr, raddr netip.AddrPort) (stack.Stream, error) {
	raddr = unmapPort(raddr)
	if !isHostAddr(raddr.Addr()) || raddr.Port() == 0 {
		return nil, fmt.Errorf("dial tcp %v: want the address and port of a host", raddr)
	}
	remote, proto := h.fullAddress(raddr)
	var local tcpip.FullAddress
	if laddr.Addr().IsValid() {
		laddr = unmapPort(laddr)
		if laddr.Addr().Is4() != raddr.Addr().Is4() {
			return nil, fmt.Errorf("dial tcp %v: local address %v is of the other IP version", raddr, laddr.Addr())
		}
		if err := h.checkLocal(laddr.Addr()); err != nil {
			return nil, fmt.Errorf("dial tcp %v: %w", raddr, err)
		}
		local, _ = h.fullAddress(laddr)
	}
	st, err := h.dial(ctx, local, remote, proto)
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("dial tcp %v: no answer: %w", raddr, ctx.Err())
		}
		return nil, fmt.Errorf("dial tcp %v: %w", raddr, err)
	}
	return st, nil
}

// ListenStream listens for TCP connections. An unspecified address means all of the host's, and for
// port 0 the host chooses. Errors wrap EADDRINUSE or EADDRNOTAVAIL.
func (h *Host) ListenStream(laddr netip.AddrPort) (stack.StreamListener, error) {
	return h.listenStream(laddr, false)
}

// ListenFamily implements stack.FamilyListener.
func (h *Host) ListenFamily(laddr netip.AddrPort) (stack.StreamListener, error) {
	return h.listenStream(laddr, true)
}

func (h *Host) listenStream(laddr netip.AddrPort, family bool) (stack.StreamListener, error) {
	laddr = unmapPort(laddr)
	local, proto := h.fullAddress(laddr)
	switch {
	case laddr.Addr().IsValid() && !laddr.Addr().IsUnspecified():
		if err := h.checkLocal(laddr.Addr()); err != nil {
			return nil, fmt.Errorf("listen tcp %v: %w", laddr, err)
		}
		family = false // the address implies it
	case family:
		local = tcpip.FullAddress{Port: laddr.Port()}
	default:
		// An IPv6 endpoint without an address accepts IPv4 connections too.
		local, proto = tcpip.FullAddress{Port: laddr.Port()}, ipv6.ProtocolNumber
	}
	l, err := h.listenAny(local, proto, family && proto == ipv6.ProtocolNumber)
	switch {
	case err == nil:
		return l, nil
	case !laddr.Addr().IsValid():
		return nil, fmt.Errorf("listen tcp :%d: %w", laddr.Port(), err)
	}
	return nil, fmt.Errorf("listen tcp %v: %w", laddr, err)
}

// listenAny listens at local. For port 0 the host chooses, because gVisor would choose only ports
// without any connection, even in TIME-WAIT.
func (h *Host) listenAny(local tcpip.FullAddress, proto tcpip.NetworkProtocolNumber, v6only bool) (*streamListener, error) {
	if local.Port != 0 {
		return h.listen(local, proto, v6only)
	}
	for port := range drawPorts(h.clock, firstEphemeral, lastEphemeral) {
		local.Port = port
		if l, err := h.listen(local, proto, v6only); !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, fmt.Errorf("all ports from %d to %d have a listener: %w", firstEphemeral, lastEphemeral, syscall.EADDRINUSE)
}

func (h *Host) checkLocal(a netip.Addr) error {
	if !a.IsUnspecified() && h.owner(a.WithZone("")) == nil {
		return fmt.Errorf("the host has no address %v: %w", a, syscall.EADDRNOTAVAIL)
	}
	return nil
}

// streamError converts gVisor's errors to their errno, if they have one.
func streamError(err tcpip.Error) error {
	for terr, errno := range streamErrnos {
		if err.String() == terr.String() {
			return errno
		}
	}
	return errors.New(err.String())
}

// withErrno replaces gonet's errors, which have gVisor's text, by their errno.
func withErrno(err error) error {
	if op, ok := err.(*net.OpError); ok {
		for terr, errno := range streamErrnos {
			if op.Err.Error() == terr.String() {
				op.Err = errno
			}
		}
	}
	return err
}

var streamErrnos = map[tcpip.Error]syscall.Errno{
	&tcpip.ErrConnectionRefused{}:  syscall.ECONNREFUSED,
	&tcpip.ErrConnectionReset{}:    syscall.ECONNRESET,
	&tcpip.ErrTimeout{}:            syscall.ETIMEDOUT,
	&tcpip.ErrHostUnreachable{}:    syscall.EHOSTUNREACH,
	&tcpip.ErrNetworkUnreachable{}: syscall.ENETUNREACH,
	&tcpip.ErrPortInUse{}:          syscall.EADDRINUSE,
	// A connection to the same peer has the address and port; the address was checked before.
	&tcpip.ErrBadLocalAddress{}: syscall.EADDRINUSE,
}

func unmapPort(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// fullAddress converts a to gVisor's form. A link-local address gets the NIC of its zone, or the
// first NIC.
func (h *Host) fullAddress(a netip.AddrPort) (tcpip.FullAddress, tcpip.NetworkProtocolNumber) {
	f := tcpip.FullAddress{Addr: tcpipAddr(a.Addr()), Port: a.Port()}
	if a.Addr().IsLinkLocalUnicast() && a.Addr().Is6() {
		f.NIC = h.nics[0].id
		for _, n := range h.nics {
			if n.Name() == a.Addr().Zone() {
				f.NIC = n.id
			}
		}
	}
	return f, protocolOf(a.Addr())
}

func protocolOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return ipv4.ProtocolNumber
	}
	return ipv6.ProtocolNumber
}

// tcpipAddr converts a to gVisor's form; an invalid a yields the zero address.
func tcpipAddr(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

// addrOf is the inverse of tcpipAddr.
func addrOf(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr.Unmap()
}

// lazyTCP is gVisor's TCP, created with the first endpoint. gVisor's dispatcher goroutines block
// where testing/synctest cannot observe them, and a host without TCP does not need them. Until
// there is an endpoint, a TCP packet is answered with ICMP port unreachable.
type lazyTCP struct {
	stack  *gstack.Stack
	config *TCPConfig
	once   sync.Once
	proto  atomic.Pointer[tcpProtocol]
	syns   synNotes
	memory tcpMemory

	streams  sync.Map // of *stream, by endpoint: open streams
	closings closings // closed streams
}

// tcpProtocol is the interface that gVisor's stack expects of TCP.
type tcpProtocol interface {
	gstack.TransportProtocol
	gstack.SendBufSizeProto
	QueuePacket(gstack.TransportEndpoint, gstack.TransportEndpointID, *gstack.PacketBuffer)
}

func (h *Host) newTCP(s *gstack.Stack) gstack.TransportProtocol {
	c := &h.tcpConfig
	h.tcp = &lazyTCP{stack: s, config: c}
	h.tcp.memory.limit, h.tcp.memory.grown = c.Memory, map[*buffers]struct{}{}
	h.tcp.closings.linger, h.tcp.closings.timeWaits, h.tcp.closings.memory = c.Linger, c.TimeWaits, &h.tcp.memory
	h.tcp.closings.clock, h.tcp.memory.clock = h.clock, h.clock
	h.tcp.closings.byID = map[gstack.TransportEndpointID]*closing{}
	return h.tcp
}

// get creates the protocol on first use.
func (l *lazyTCP) get() tcpProtocol {
	l.once.Do(func() {
		p := tcp.NewProtocol(l.stack).(tcpProtocol)
		sack := tcpip.TCPSACKEnabled(true)
		// RFC 6675's recovery. gVisor's RACK (RFC 8985) recovers two segments in each retransmission
		// timeout: a full queue's loss of a hundred takes 10 s, and UserTimeout ends the connection.
		recovery := tcpip.TCPRecovery(0)
		for _, o := range []tcpip.SettableTransportProtocolOption{
			&tcpip.TCPSendBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: leastSend, Max: l.config.SendBuffer},
			// The window scale in the SYN follows from the largest size.
			&tcpip.TCPReceiveBufferSizeRangeOption{Min: tcp.MinBufferSize, Default: leastReceive, Max: l.config.RecvBuffer},
			&sack,
			&recovery,
		} {
			if err := p.SetOption(o); err != nil {
				// Its values are constants, or were checked.
				panic(fmt.Sprintf("gVisor refuses TCP option %T: %v", o, err))
			}
		}
		l.proto.Store(&p)
	})
	return *l.proto.Load()
}

// made returns the protocol if get has been called.
func (l *lazyTCP) made() (tcpProtocol, bool) {
	if p := l.proto.Load(); p != nil {
		return *p, true
	}
	return nil, false
}

func (l *lazyTCP) Number() tcpip.TransportProtocolNumber { return tcp.ProtocolNumber }

func (l *lazyTCP) NewEndpoint(n tcpip.NetworkProtocolNumber, wq *waiter.Queue) (tcpip.Endpoint, tcpip.Error) {
	return l.get().NewEndpoint(n, wq)
}

func (l *lazyTCP) NewRawEndpoint(n tcpip.NetworkProtocolNumber, wq *waiter.Queue) (tcpip.Endpoint, tcpip.Error) {
	return l.get().NewRawEndpoint(n, wq)
}

func (l *lazyTCP) MinimumPacketSize() int { return header.TCPMinimumSize }

func (l *lazyTCP) ParsePorts(b []byte) (src, dst uint16, err tcpip.Error) {
	h := header.TCP(b)
	return h.SourcePort(), h.DestinationPort(), nil
}

func (l *lazyTCP) Parse(pkt *gstack.PacketBuffer) bool { return parse.TCP(pkt) }

func (l *lazyTCP) HandleUnknownDestinationPacket(id gstack.TransportEndpointID,
	pkt *gstack.PacketBuffer) gstack.UnknownDestinationPacketDisposition {
	if p, ok := l.made(); ok {
		return p.HandleUnknownDestinationPacket(id, pkt)
	}
	return gstack.UnknownDestinationPacketUnhandled
}

// QueuePacket and SendBufferSize are called only for endpoints. Endpoints exist only after get.

func (l *lazyTCP) QueuePacket(ep gstack.TransportEndpoint, id gstack.TransportEndpointID, pkt *gstack.PacketBuffer) {
	segment := header.TCP(pkt.TransportHeader().Slice())
	if segment.Flags()&header.TCPFlagSyn != 0 {
		raiseMSS(segment)
		l.syns.see(id, segment)
		if superseded(ep, segment, pkt) {
			l.supersede(ep, id, pkt)
			return
		}
	}
	s, ok := l.streams.Load(ep)
	if n := pkt.Data().Size(); ok && n > 0 {
		s.(*stream).buffers.arrived(segment.SequenceNumber() + uint32(n))
	}
	l.get().QueuePacket(ep, id, pkt)
	if ok {
		s.(*stream).segmentArrived()
	}
}

func (l *lazyTCP) SendBufferSize() tcpip.TCPSendBufferSizeRangeOption {
	return l.get().SendBufferSize()
}

func (l *lazyTCP) SetOption(o tcpip.SettableTransportProtocolOption) tcpip.Error {
	return l.get().SetOption(o)
}

func (l *lazyTCP) Option(o tcpip.GettableTransportProtocolOption) tcpip.Error {
	return l.get().Option(o)
}

func (l *lazyTCP) Close() {
	l.closings.stop()
	l.each(tcpProtocol.Close)
}

func (l *lazyTCP) Wait()    { l.each(tcpProtocol.Wait) }
func (l *lazyTCP) Pause()   { l.each(tcpProtocol.Pause) }
func (l *lazyTCP) Resume()  { l.each(tcpProtocol.Resume) }
func (l *lazyTCP) Restore() { l.each(tcpProtocol.Restore) }

func (l *lazyTCP) each(f func(tcpProtocol)) {
	if p, ok := l.made(); ok {
		f(p)
	}
}
