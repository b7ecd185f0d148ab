package netstack

import (
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// Endpoint is gVisor's link endpoint over a [link.Link]. TCP superframes and partial checksums pass
// in both directions, if the link has these offloads.
type Endpoint struct {
	link    link.Link
	mac     [6]byte
	offload link.Offloads
	mtu     atomic.Uint32

	handler    atomic.Pointer[func(*link.Frame) bool]
	steering   atomic.Pointer[func(*link.Frame) bool]
	dispatcher atomic.Pointer[gstack.NetworkDispatcher]
	attach     sync.Once
	scratch    sync.Pool // of *transmission
}

// Discard is the mark (tcpip.SocketOptions.SetMark) of packets that are discarded instead of sent.
const Discard = 0x6469_7363

var (
	_ gstack.LinkEndpoint = (*Endpoint)(nil)
	_ gstack.GSOEndpoint  = (*Endpoint)(nil)

	_ gstack.QueueingDiscipline = noQueue{}
)

// NewEndpoint returns the endpoint of l, which it owns: closing the endpoint closes the link.
// Reception starts when a NIC is created on it.
func NewEndpoint(l link.Link) *Endpoint {
	e := &Endpoint{link: l, offload: l.Offloads()}
	copy(e.mac[:], l.MAC())
	e.mtu.Store(uint32(l.MTU()))
	e.scratch.New = func() any { return new(transmission) }
	return e
}

// Link returns the endpoint's link.
func (e *Endpoint) Link() link.Link { return e.link }

// SetFrameHandler installs h. It gets each received frame to this host (its MAC address, broadcast,
// multicast) before gVisor, on the link's goroutines. If it returns true, gVisor does not get the
// frame. Nil removes it.
func (e *Endpoint) SetFrameHandler(h func(*link.Frame) bool) {
	if h == nil {
		e.handler.Store(nil)
		return
	}
	e.handler.Store(&h)
}

// SetSteering installs f. It gets each received frame with any destination before all others, on
// the link's goroutines. If it returns true, no other gets the frame. Nil removes it.
func (e *Endpoint) SetSteering(f func(*link.Frame) bool) {
	if f == nil {
		e.steering.Store(nil)
		return
	}
	e.steering.Store(&f)
}

// transmission has the buffers of WritePackets. They are reused.
type transmission struct {
	frames []link.Frame
	pieces [][]byte
}

// WritePackets implements stack.LinkWriter.
func (e *Endpoint) WritePackets(pkts gstack.PacketBufferList) (int, tcpip.Error) {
	t := e.scratch.Get().(*transmission)
	for _, pkt := range pkts.AsSlice() {
		t.add(pkt)
	}
	return e.transmit(t)
}

// transmit writes t's frames and returns t to the pool.
func (e *Endpoint) transmit(t *transmission) (int, tcpip.Error) {
	n, err := e.link.Write(t.frames)
	clear(t.frames)
	clear(t.pieces)
	t.frames, t.pieces = t.frames[:0], t.pieces[:0]
	e.scratch.Put(t)
	return n, tcpipError(err)
}

// QDisc returns the queueing discipline for NICs on the endpoint. Like gVisor's default it queues
// nothing, but it does not allocate a list for each packet.
func (e *Endpoint) QDisc() gstack.QueueingDiscipline { return noQueue{e} }

type noQueue struct{ e *Endpoint }

// WritePacket implements stack.QueueingDiscipline.
func (q noQueue) WritePacket(pkt *gstack.PacketBuffer) tcpip.Error {
	t := q.e.scratch.Get().(*transmission)
	t.add(pkt)
	_, err := q.e.transmit(t)
	return err
}

// Close implements stack.QueueingDiscipline.
func (noQueue) Close() {}

func (t *transmission) add(pkt *gstack.PacketBuffer) {
	if pkt.Mark == Discard {
		return
	}
	first := len(t.pieces)
	views, skip := pkt.AsViewList()
	for v := views.Front(); v != nil; v = v.Next() {
		b := v.AsSlice()
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		t.pieces = append(t.pieces, b[skip:])
		skip = 0
	}
	// When t.pieces grows, earlier frames keep the previous array, whose contents do not
	// change.
	pieces := t.pieces[first:len(t.pieces):len(t.pieces)]
	if len(pieces) == 0 {
		return
	}
	f := link.Frame{Data: pieces[0], More: pieces[1:]}
	if gso := &pkt.GSOOptions; gso.Type == gstack.GSOTCPv4 || gso.Type == gstack.GSOTCPv6 {
		if gso.NeedsCsum {
			f.NeedsChecksum = true
			f.ChecksumStart = link.EthernetHeaderLen + gso.L3HdrLen
			f.ChecksumOffset = gso.CsumOffset
		}
		if pkt.Data().Size() > int(gso.MSS) {
			f.Segmentation = link.TCPv4
			if gso.Type == gstack.GSOTCPv6 {
				f.Segmentation = link.TCPv6
			}
			f.SegmentSize = gso.MSS
			f.HeaderLen = uint16(pkt.HeaderSize())
		}
	}
	t.frames = append(t.frames, f)
}

func tcpipError(err error) tcpip.Error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, net.ErrClosed):
		return &tcpip.ErrClosedForSend{}
	case errors.Is(err, link.ErrTooLong):
		return &tcpip.ErrMessageTooLong{}
	default:
		return &tcpip.ErrNoBufferSpace{}
	}
}

// receive is the link's Receiver.
func (e *Endpoint) receive(frames []link.Frame) {
	h, s := e.handler.Load(), e.steering.Load()
	for i := range frames {
		f := &frames[i]
		if f.NoICRC {
			e.receiveInPlace(f, h, s)
			continue
		}
		if len(f.Data) < link.EthernetHeaderLen || s != nil && (*s)(f) {
			continue
		}
		// A tag with VLAN ID 0 only gives a priority (IEEE 802.1Q §6.8). Frames of other VLANs are not
		// for this host.
		if link.Tagged(f.Data) && (!f.TakeTag() || f.TCI&link.VLANMask != 0) {
			continue
		}
		to, ok := e.addressee(f.Data)
		if !ok || h != nil && (*h)(f) {
			continue
		}
		e.deliver(f, to)
	}
}

// receiveInPlace receives a frame that is marked as RoCE packets without ICRCs. If it contains
// anything else, or has a tag, it is dropped. Steering gets a copy.
func (e *Endpoint) receiveInPlace(f *link.Frame, handler, steering *func(*link.Frame) bool) {
	if steering != nil {
		if len(f.More) > 0 {
			f.Data, f.More = append(append(make([]byte, 0, f.Len()), f.Data...), f.More[0]...), nil
		}
		if (*steering)(f) {
			return
		}
	}
	if len(f.Data) >= link.EthernetHeaderLen && [6]byte(f.Data) == e.mac && handler != nil {
		(*handler)(f)
	}
}

// addressee returns the kind of the frame's destination. ok is false for another host's frame.
func (e *Endpoint) addressee(frame []byte) (kind tcpip.PacketType, ok bool) {
	dst := [6]byte(frame)
	switch {
	case dst == e.mac:
		return tcpip.PacketHost, true
	case dst == [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}:
		return tcpip.PacketBroadcast, true
	default:
		return tcpip.PacketMulticast, dst[0]&1 != 0
	}
}

func (e *Endpoint) deliver(f *link.Frame, to tcpip.PacketType) {
	d := e.dispatcher.Load()
	if d == nil {
		return
	}
	// gVisor trusts either every checksum of a link or none (CapabilityRXChecksumOffload).
	// Checksums that the medium does not guarantee are therefore verified here.
	if e.offload.Checksum && !f.NeedsChecksum && !f.ChecksumValid && !checksumsValid(f.Data) {
		return
	}
	data := f.Data
	h := headersLen(data)
	payload := buffer.MakeWithView(buffer.NewViewWithData(data[:h]))
	if len(data) > h {
		_ = payload.Append(buffer.NewViewWithData(data[h:])) // fails only for a nil view
	}
	pkt := gstack.NewPacketBuffer(gstack.PacketBufferOptions{Payload: payload})
	defer pkt.DecRef()
	pkt.PktType = to
	if !e.ParseHeader(pkt) {
		return
	}
	proto := header.Ethernet(data).Type()
	pkt.NetworkProtocolNumber = proto
	(*d).DeliverNetworkPacket(proto, pkt)
}

// wholeView is the largest frame that lies in one view, in bytes.
const wholeView = 512

// headersLen returns the number of bytes of a frame that form its first view. gVisor copies the
// view with the headers when it parses them, so for a long segment it should contain nothing else.
// The payload is then in one view, of a size that gVisor pools.
func headersLen(frame []byte) int {
	if len(frame) <= wholeView {
		return len(frame)
	}
	n, proto := link.EthernetHeaderLen, tcpip.TransportProtocolNumber(0)
	switch ip := frame[n:]; header.Ethernet(frame).Type() {
	case header.IPv4ProtocolNumber:
		n += int(header.IPv4(ip).HeaderLength())
		proto = header.IPv4(ip).TransportProtocol()
	case header.IPv6ProtocolNumber:
		n += header.IPv6MinimumSize
		proto = tcpip.TransportProtocolNumber(header.IPv6(ip).NextHeader())
	}
	if proto == header.TCPProtocolNumber {
		return n + int(header.TCP(frame[n:]).DataOffset()) // at most 14+60+60
	}
	return wholeView
}

// checksumsValid verifies the checksums of the IPv4 header, and of TCP and UDP in an unfragmented
// packet without extension headers. gVisor verifies other packets.
func checksumsValid(frame []byte) bool {
	ip := frame[link.EthernetHeaderLen:]
	switch header.Ethernet(frame).Type() {
	case header.IPv4ProtocolNumber:
		h := header.IPv4(ip)
		if !h.IsValid(len(ip)) || !h.IsChecksumValid() {
			return false
		}
		if h.More() || h.FragmentOffset() != 0 {
			return true
		}
		segment := ip[h.HeaderLength():h.TotalLength()]
		if h.TransportProtocol() == header.UDPProtocolNumber && len(segment) >= 8 && binary.BigEndian.Uint16(segment[6:]) == 0 {
			return true
		}
		return transportValid(h.TransportProtocol(), h.SourceAddress(), h.DestinationAddress(), segment)
	case header.IPv6ProtocolNumber:
		h := header.IPv6(ip)
		if !h.IsValid(len(ip)) {
			return false
		}
		segment := ip[header.IPv6MinimumSize:][:h.PayloadLength()]
		return transportValid(tcpip.TransportProtocolNumber(h.NextHeader()), h.SourceAddress(), h.DestinationAddress(), segment)
	}
	return true
}

func transportValid(proto tcpip.TransportProtocolNumber, src, dst tcpip.Address, segment []byte) bool {
	if proto != header.TCPProtocolNumber && proto != header.UDPProtocolNumber {
		return true
	}
	sum := header.PseudoHeaderChecksum(proto, src, dst, uint16(len(segment)))
	return checksum.Checksum(segment, sum) == 0xffff
}

// Attach implements stack.LinkEndpoint; the first call starts reception.
func (e *Endpoint) Attach(d gstack.NetworkDispatcher) {
	if d == nil {
		e.dispatcher.Store(nil)
		return
	}
	e.dispatcher.Store(&d)
	e.attach.Do(func() { e.link.Attach(e.receive) })
}

// IsAttached implements stack.LinkEndpoint.
func (e *Endpoint) IsAttached() bool { return e.dispatcher.Load() != nil }

// Wait implements stack.LinkEndpoint. It does not wait for the link's goroutine, as Close does:
// gVisor may hold locks that the goroutine needs.
func (e *Endpoint) Wait() {}

// Close implements stack.LinkEndpoint: it closes the link.
func (e *Endpoint) Close() { _ = e.link.Close() }

// SetOnCloseAction implements stack.LinkEndpoint. It does nothing: the link removes its resources
// itself.
func (e *Endpoint) SetOnCloseAction(func()) {}

// MTU implements stack.LinkEndpoint.
func (e *Endpoint) MTU() uint32 { return e.mtu.Load() }

// SetMTU implements stack.LinkEndpoint. The MTU never exceeds the link's.
func (e *Endpoint) SetMTU(mtu uint32) { e.mtu.Store(min(mtu, uint32(e.link.MTU()))) }

// LinkAddress implements stack.LinkEndpoint.
func (e *Endpoint) LinkAddress() tcpip.LinkAddress { return tcpip.LinkAddress(e.mac[:]) }

// SetLinkAddress implements stack.LinkEndpoint and does nothing: the link determines the address.
func (e *Endpoint) SetLinkAddress(tcpip.LinkAddress) {}

// Capabilities implements stack.LinkEndpoint.
func (e *Endpoint) Capabilities() gstack.LinkEndpointCapabilities {
	c := gstack.LinkEndpointCapabilities(gstack.CapabilityResolutionRequired)
	if e.offload.Checksum {
		c |= gstack.CapabilityRXChecksumOffload
	}
	return c
}

// GSOMaxSize implements stack.GSOEndpoint. Of this size gVisor subtracts 160 bytes for headers and
// one more. Headers have at most 120 bytes, so the longest piece of a stream fits one frame.
func (e *Endpoint) GSOMaxSize() uint32 { return stack.MaxPiece + header.TCPTotalHeaderMaximumSize + 1 }

// SupportedGSO implements stack.GSOEndpoint. With host GSO, gVisor's TCP always leaves a partial
// checksum.
func (e *Endpoint) SupportedGSO() gstack.SupportedGSO {
	if e.offload.TSO && e.offload.Checksum {
		return gstack.HostGSOSupported
	}
	return gstack.GSONotSupported
}

// MaxHeaderLength implements stack.LinkEndpoint.
func (e *Endpoint) MaxHeaderLength() uint16 { return link.EthernetHeaderLen }

// ARPHardwareType implements stack.LinkEndpoint.
func (e *Endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareEther }

// AddHeader implements stack.LinkEndpoint.
func (e *Endpoint) AddHeader(pkt *gstack.PacketBuffer) {
	header.Ethernet(pkt.LinkHeader().Push(link.EthernetHeaderLen)).Encode(&header.EthernetFields{
		SrcAddr: pkt.EgressRoute.LocalLinkAddress,
		DstAddr: pkt.EgressRoute.RemoteLinkAddress,
		Type:    pkt.NetworkProtocolNumber,
	})
}

// ParseHeader implements stack.LinkEndpoint.
func (e *Endpoint) ParseHeader(pkt *gstack.PacketBuffer) bool {
	_, ok := pkt.LinkHeader().Consume(link.EthernetHeaderLen)
	return ok
}
