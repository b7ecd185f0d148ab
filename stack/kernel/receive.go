package kernel

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// socket passes the datagrams to one address, or to one multicast group, to the receiver.
type socket struct {
	*rxsocket.Socket
	delivery
	steered *steered // nil: the address is not shared, or this is a group
}

func (p *port) newSocket(a netip.Addr) (_ *socket, err error) {
	in := &socket{delivery: delivery{port: p}}
	in.Socket, err = rxsocket.Open(a, p.nic.name, in)
	return in, err
}

// newGroupSocket receives datagrams to a multicast group. Any number of processes may be in the
// same group.
func (p *port) newGroupSocket(group netip.Addr) (_ *socket, err error) {
	in := &socket{delivery: delivery{port: p}}
	in.Socket, err = rxsocket.OpenGroup(group, p.nic.index, in)
	return in, err
}

// Deliver implements [rxsocket.Receiver].
func (in *socket) Deliver(a *rxsocket.Arrival, polled bool) {
	arrival := hub.Arrival{Payload: a.Payload, From: a.From, Dst: in.Addr(),
		TrafficClass: a.TrafficClass, TTL: a.TTL, Segment: a.Segment}
	if in.steered == nil || in.steered.isOwn(&arrival) {
		in.deliver(&arrival, polled)
	} else {
		in.deliverOwn(&arrival, polled)
	}
}

// Polling implements [rxsocket.Receiver].
func (in *socket) Polling() bool { return in.port.watch.Polling() }

// delivery converts the arrivals of one source to datagrams, and passes them to the receiver, one
// at a time.
type delivery struct {
	port *port
	d    stack.Datagram
	head [rxsocket.MaxHeader]byte
}

// deliver passes an arrival to the receiver.
//
// A socket does not show the IP header. The fields that the ICRC covers are known, except for
// IPv4's identification. deliver sets it to the value that Linux and other systems use for an
// unconnected socket that must not fragment: 0, and 0, 1, 2, … for the datagrams of one superframe.
// An arrival from a hub may begin in the middle of a superframe.
func (y *delivery) deliver(a *hub.Arrival, polled bool) {
	p, dst := y.port, a.Dst
	receiver := p.receiver.Load()
	src := a.From.Addr().Unmap().WithZone("")
	switch {
	case len(a.Payload) == 0 || !isHostAddr(src) || src.Is4() != dst.Is4():
		p.counters.rxMalformed.Add(1)
		return
	case receiver == nil:
		p.counters.rxDropped.Add(1)
		return
	}
	size := len(a.Payload)
	if a.Segment > 0 {
		size = min(size, a.Segment)
	}
	head := y.head[:rxsocket.PutHeader(y.head[:], src, dst, a.From.Port(), a.TrafficClass, a.TTL)]
	stack.PutLengths(head, len(a.Payload))
	if src.Is4() {
		binary.BigEndian.PutUint16(head[4:], a.ID)
	}
	y.d = stack.Datagram{
		Src: src, Dst: dst, SrcPort: a.From.Port(), TrafficClass: a.TrafficClass, HopLimit: a.TTL, Polled: polled,
		Looped: p.nic.has(src), Header: head, Payload: a.Payload, SegmentSize: size, IDGuessed: src.Is4(),
		NoICRC: a.NoICRC, InPlace: a.InPlace, SrcQPNs: a.SrcQPNs,
	}
	n := (len(a.Payload) + size - 1) / size
	bytes := uint64(len(a.Payload) + n*(ethLen+len(head)))
	p.counters.rxFrames.Add(1)
	if p.leaves(src) {
		p.counters.receivedBytes.Add(bytes)
		p.counters.receivedPackets.Add(uint64(n))
		if dst.IsMulticast() {
			p.counters.receivedMulticast.Add(uint64(n))
		}
	}
	(*receiver)(&y.d)
}
