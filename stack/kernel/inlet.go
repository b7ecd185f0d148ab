package kernel

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/stack"
)

// inlet receives what comes to one address, or to one multicast group.
type inlet struct {
	port  *port
	addr  netip.Addr
	conn  *net.UDPConn
	ended atomic.Bool // nothing is received any more
	raw   syscall.RawConn

	mu       sync.Mutex // held while datagrams are received, and the receiver runs
	receiver func(*stack.Datagram)
	batch    batch
	d        stack.Datagram
	head     [ipv6Len + udpLen]byte
}

// arrival is what one read of a socket has brought: a datagram, or several of one size in a row.
type arrival struct {
	payload           []byte
	from              netip.AddrPort
	trafficClass, ttl uint8
	segment           int // payload bytes of each datagram but the last; 0 if there is one only
}

func (p *port) newInlet(a netip.Addr) (*inlet, error) {
	conn, raw, err := p.nic.bind(a, stack.RoCEPort, setReceiving)
	if err != nil {
		return nil, bindError(a, err)
	}
	in := &inlet{port: p, addr: a, conn: conn, raw: raw}
	in.batch.init(in)
	return in, nil
}

// newGroupInlet receives what comes to a multicast group. Any number of processes may be in the same group.
func (p *port) newGroupInlet(group netip.Addr) (*inlet, error) {
	conn, err := listenGroup(group, p.nic.index)
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	in := &inlet{port: p, addr: group, conn: conn, raw: raw}
	in.batch.init(in)
	return in, nil
}

// deliver hands an arrival to the receiver. mu is held.
//
// A socket does not show the IP header. The fields of it that the ICRC covers are known, except for IPv4's identification.
// It is set to what Linux gives to an unconnected socket that may not fragment, and other systems too: 0, and 0, 1, 2, … to
// the datagrams that were sent as one superframe.
func (in *inlet) deliver(a *arrival, polled bool) {
	p := in.port
	src := a.from.Addr().Unmap().WithZone("")
	switch {
	case len(a.payload) == 0 || !isHostAddr(src) || src.Is4() != in.addr.Is4():
		p.counters.rxMalformed.Add(1)
		return
	case in.receiver == nil:
		p.counters.rxDropped.Add(1)
		return
	}
	size := len(a.payload)
	if a.segment > 0 {
		size = min(size, a.segment)
	}
	head := in.head[:putHeader(in.head[:], src, in.addr, a.from.Port(), stack.RoCEPort, a.trafficClass, a.ttl)]
	stack.PutLengths(head, len(a.payload))
	in.d = stack.Datagram{
		Src: src, Dst: in.addr, SrcPort: a.from.Port(), TrafficClass: a.trafficClass, HopLimit: a.ttl, Polled: polled,
		Looped: p.nic.has(src), Header: head, Payload: a.payload, SegmentSize: size, IDGuessed: src.Is4(),
	}
	n := (len(a.payload) + size - 1) / size
	bytes := uint64(len(a.payload) + n*(ethLen+len(head)))
	p.counters.rxFrames.Add(1)
	p.counters.rxBytes.Add(uint64(ethLen + len(head) + len(a.payload)))
	if !in.d.Looped {
		p.counters.receivedPackets.Add(uint64(n))
		p.counters.receivedBytes.Add(bytes)
		if in.addr.IsMulticast() {
			p.counters.receivedMulticast.Add(uint64(n))
		}
	}
	in.receiver(&in.d)
}

// putHeader writes an IP and a UDP header without lengths and checksums into b, and returns how long they are. Don't Fragment
// is set, and the identification 0.
func putHeader(b []byte, src, dst netip.Addr, srcPort, dstPort uint16, trafficClass, ttl uint8) int {
	n := ipv4Len
	if src.Is4() {
		clear(b[:n])
		b[0], b[1], b[6], b[8], b[9] = 4<<4|ipv4Len/4, trafficClass, 0x40, ttl, syscall.IPPROTO_UDP
		s, d := src.As4(), dst.As4()
		copy(b[12:], s[:])
		copy(b[16:], d[:])
	} else {
		n = ipv6Len
		clear(b[:n])
		binary.BigEndian.PutUint16(b, 6<<12|uint16(trafficClass)<<4)
		b[6], b[7] = syscall.IPPROTO_UDP, ttl
		s, d := src.As16(), dst.As16()
		copy(b[8:], s[:])
		copy(b[24:], d[:])
	}
	udp := b[n : n+udpLen]
	clear(udp)
	binary.BigEndian.PutUint16(udp, srcPort)
	binary.BigEndian.PutUint16(udp[2:], dstPort)
	return n + udpLen
}
