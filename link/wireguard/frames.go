package wireguard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/softrnic/softrnic/link"
)

// Encrypted packets in Ethernet frames, for Config.Under: after the Ethernet header, the packet's
// length and the packet. An Ethernet pads short frames.
//
//	+-----------------+--------+------------------+
//	| Ethernet header | length | encrypted packet |
//	+-----------------+--------+------------------+
const (
	typeEncrypted = 0x88b6 // for local experiments (IEEE 802)
	lengthLen     = 2
	frameOverhead = lengthLen + 32
)

// maxWaiting is the number of received packets that may wait for WireGuard's device. Further ones
// are lost.
const maxWaiting = 1024

// frameBind is a conn.Bind on an Ethernet link. A node's place there is its MAC address.
type frameBind struct {
	under link.Link
	own   [6]byte

	mu       sync.Mutex
	arrived  sync.Cond
	open     bool
	attached bool
	packets  [maxWaiting]waiting // a ring
	first, n int
	sending  sync.Pool // of *outgoing
}

// waiting is a received packet.
type waiting struct {
	from place
	data []byte
}

// outgoing has the frames of a batch.
type outgoing struct {
	frames  [conn.IdealBatchSize]link.Frame
	headers [conn.IdealBatchSize][link.EthernetHeaderLen + lengthLen]byte
	rest    [conn.IdealBatchSize][1][]byte
}

func newFrameBind(under link.Link) *frameBind {
	b := &frameBind{under: under, sending: sync.Pool{New: func() any { return new(outgoing) }}}
	copy(b.own[:], under.MAC())
	b.arrived.L = &b.mu
	return b
}

// place is the MAC address of a node. It implements conn.Endpoint. For people, and for WireGuard's
// limits, it is the link-local address made from it.
type place [6]byte

func (p place) addr() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: p[0] ^ 2, 9: p[1], 10: p[2], 11: 0xff, 12: 0xfe, 13: p[3], 14: p[4], 15: p[5]})
}

func (place) ClearSrc()             {}
func (place) SrcToString() string   { return "" }
func (p place) DstToString() string { return netip.AddrPortFrom(p.addr(), 0).String() }
func (p place) DstToBytes() []byte  { return p[:] }
func (p place) DstIP() netip.Addr   { return p.addr() }
func (place) SrcIP() netip.Addr     { return netip.Addr{} }

var _ conn.Bind = (*frameBind)(nil)

// Open implements conn.Bind.
func (b *frameBind) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	first := !b.attached
	b.open, b.attached = true, true
	b.mu.Unlock()
	if first {
		b.under.Attach(b.arrive)
	}
	return []conn.ReceiveFunc{b.receive}, 0, nil
}

// arrive is the receiver of the link below.
func (b *frameBind) arrive(frames []link.Frame) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range frames {
		d := frames[i].Data
		const headers = link.EthernetHeaderLen + lengthLen
		if len(d) < headers || [6]byte(d) != b.own || binary.BigEndian.Uint16(d[12:]) != typeEncrypted || b.n == maxWaiting || !b.open {
			continue
		}
		n := int(binary.BigEndian.Uint16(d[link.EthernetHeaderLen:]))
		if n > len(d)-headers {
			continue
		}
		w := &b.packets[(b.first+b.n)%maxWaiting]
		w.from, w.data = place(d[6:]), append(w.data[:0], d[headers:headers+n]...)
		b.n++
	}
	b.arrived.Signal()
}

func (b *frameBind) receive(packets [][]byte, sizes []int, from []conn.Endpoint) (n int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.n == 0 && b.open {
		b.arrived.Wait()
	}
	if !b.open {
		return 0, net.ErrClosed
	}
	for n < len(packets) && b.n > 0 {
		w := &b.packets[b.first]
		sizes[n], from[n] = copy(packets[n], w.data), w.from
		b.first, b.n = (b.first+1)%maxWaiting, b.n-1
		n++
	}
	return n, nil
}

// Send implements conn.Bind.
func (b *frameBind) Send(packets [][]byte, to conn.Endpoint) error {
	dst, ok := to.(place)
	if !ok || len(packets) > conn.IdealBatchSize {
		return conn.ErrWrongEndpointType
	}
	o := b.sending.Get().(*outgoing)
	defer b.sending.Put(o)
	for i, p := range packets {
		h := o.headers[i][:]
		copy(h, dst[:])
		copy(h[6:], b.own[:])
		binary.BigEndian.PutUint16(h[12:], typeEncrypted)
		binary.BigEndian.PutUint16(h[link.EthernetHeaderLen:], uint16(len(p)))
		o.rest[i][0] = p
		o.frames[i] = link.Frame{Data: h, More: o.rest[i][:]}
	}
	_, err := b.under.Write(o.frames[:len(packets)])
	clear(o.frames[:len(packets)])
	clear(o.rest[:len(packets)])
	return err
}

// ParseEndpoint implements conn.Bind.
func (*frameBind) ParseEndpoint(text string) (conn.Endpoint, error) {
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return nil, fmt.Errorf("%q is not a MAC address", text)
	}
	return place(mac), nil
}

// Close implements conn.Bind.
func (b *frameBind) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = false
	b.arrived.Broadcast()
	return nil
}

// SetMark implements conn.Bind.
func (*frameBind) SetMark(mark uint32) error {
	if mark != 0 {
		return errors.New("a mark is for UDP sockets only")
	}
	return nil
}

// BatchSize implements conn.Bind.
func (*frameBind) BatchSize() int { return conn.IdealBatchSize }
