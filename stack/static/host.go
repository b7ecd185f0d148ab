// Package static is a small network stack for simulations of many hosts: one IPv4 address, and
// neighbours that are known from the beginning. It carries RoCEv2 datagrams only. There is no ARP,
// no TCP, so no iWARP, and no multicast. What a host sends to itself returns a microsecond later.
//
// It has the semantics of package netstack as far as it goes, costs less per packet, and a host of
// it a few kilobytes.
package static

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/stack"
)

// Config configures a host.
type Config struct {
	// Addr is the host's IPv4 address.
	Addr netip.Addr
	// Neighbour returns the MAC address of another host, which is on the same link. Any goroutine
	// may call it.
	Neighbour func(netip.Addr) (mac [6]byte, ok bool)
}

// Host is a host on a link, which it owns.
type Host struct {
	link   link.Link
	cfg    Config
	mac    [6]byte
	clock  stack.Clock
	queues link.Queues // link, or nil

	receiver atomic.Pointer[func(*stack.Datagram)]
	watch    atomic.Pointer[func(stack.Change)]
	counters counters
	loop     loop
	spare    atomic.Pointer[stack.Datagram] // not in use
}

var (
	_ stack.Network      = (*Host)(nil)
	_ stack.Clocked      = (*Host)(nil)
	_ stack.NIC          = nic{}
	_ stack.DatagramPort = nic{}
)

type counters struct {
	txErrors, malformed, dropped atomic.Uint64
	sent, received               traffic
}

type traffic struct{ packets, bytes atomic.Uint64 }

func (t *traffic) add(frame int) {
	t.packets.Add(1)
	t.bytes.Add(uint64(frame))
}

func (t *traffic) get() stack.Traffic {
	return stack.Traffic{Packets: t.packets.Load(), Bytes: t.bytes.Load()}
}

// New creates a host on a link. If New fails, it closes the link.
func New(l link.Link, cfg *Config) (*Host, error) {
	if !cfg.Addr.Is4() || cfg.Neighbour == nil {
		return nil, errors.Join(fmt.Errorf("static: Config.Addr is %v: it must be an IPv4 address, and Neighbour not nil",
			cfg.Addr), l.Close())
	}
	h := &Host{link: l, cfg: *cfg, mac: [6]byte(l.MAC()), clock: link.ClockOf(l)}
	h.queues, _ = l.(link.Queues)
	h.loop.h = h
	link.Watch(l, h.changed)
	l.Attach(h.receive)
	return h, nil
}

// NICs implements [stack.Network].
func (h *Host) NICs() []stack.NIC { return []stack.NIC{nic{h}} }

// Clock implements [stack.Clocked]: that of the link.
func (h *Host) Clock() stack.Clock { return h.clock }

// DialStream implements [stack.Network]. There are no streams.
func (h *Host) DialStream(context.Context, netip.AddrPort, netip.AddrPort) (stack.Stream, error) {
	return nil, errNoStreams
}

// ListenStream implements [stack.Network]. There are no streams.
func (h *Host) ListenStream(netip.AddrPort) (stack.StreamListener, error) { return nil, errNoStreams }

var errNoStreams = fmt.Errorf("static: a stack without TCP: %w", errors.ErrUnsupported)

// Close closes the link.
func (h *Host) Close() error {
	h.loop.close()
	return h.link.Close()
}

func (h *Host) changed() {
	f := h.watch.Load()
	if f == nil {
		return
	}
	switch link.StateOf(h.link) {
	case link.Up:
		(*f)(stack.LinkCameUp)
	case link.Removed:
		(*f)(stack.LinkWentDown)
		(*f)(stack.LinkGone)
	default:
		(*f)(stack.LinkWentDown)
	}
}

// nic is the only interface.
type nic struct{ h *Host }

func (n nic) Name() string                  { return n.h.link.Name() }
func (n nic) MAC() net.HardwareAddr         { return n.h.link.MAC() }
func (n nic) MTU() int                      { return n.h.link.MTU() }
func (n nic) GIDs() []netip.Addr            { return []netip.Addr{n.h.cfg.Addr} }
func (n nic) State() stack.LinkState        { return link.StateOf(n.h.link) }
func (n nic) Datagrams() stack.DatagramPort { return n }
func (n nic) Frames() stack.FramePort       { return nil }
func (n nic) Poll() bool                    { return false }
func (n nic) EndPoll()                      {}
func (n nic) Join(netip.Addr) error         { return errNoMulticast }
func (n nic) Leave(netip.Addr) error        { return errNoMulticast }

var errNoMulticast = fmt.Errorf("static: a stack without multicast: %w", errors.ErrUnsupported)

func (n nic) Watch(f func(stack.Change)) {
	if f == nil {
		n.h.watch.Store(nil)
	} else {
		n.h.watch.Store(&f)
	}
}

func (n nic) Counters() stack.Counters {
	c := &n.h.counters
	sent, received := c.sent.get(), c.received.get()
	return stack.Counters{TxFrames: sent.Packets, TxDatagrams: sent.Packets, TxErrors: c.txErrors.Load(), RxFrames: received.Packets,
		RxMalformed: c.malformed.Load(), RxDropped: c.dropped.Load(), Sent: sent, Received: received}
}

func (n nic) Source(dst netip.Addr) (netip.Addr, bool, error) {
	dst = dst.Unmap()
	if _, ok := n.h.neighbour(dst); !ok {
		return netip.Addr{}, false, fmt.Errorf("static: %v is no neighbour: %w", dst, syscall.ENETUNREACH)
	}
	return n.h.cfg.Addr, true, nil
}

// neighbour returns the MAC address of a host, which may be this one.
func (h *Host) neighbour(a netip.Addr) ([6]byte, bool) {
	if a == h.cfg.Addr {
		return h.mac, true
	}
	return h.cfg.Neighbour(a)
}

func (n nic) Resolve(_ context.Context, _, dst netip.Addr) error {
	_, _, err := n.Source(dst)
	return err
}

func (n nic) Receive(f func(*stack.Datagram)) {
	if f == nil {
		n.h.receiver.Store(nil)
	} else {
		n.h.receiver.Store(&f)
	}
}

const (
	ethLen  = link.EthernetHeaderLen
	ipLen   = 20
	udpLen  = 8
	headers = ethLen + ipLen + udpLen
)

// receive passes the datagrams of frames from the link to the receiver.
func (h *Host) receive(frames []link.Frame) {
	for i := range frames {
		h.pass(frames[i].Data, false)
	}
}

// pass passes the datagram of a frame to the receiver, if it has one for the host.
func (h *Host) pass(b []byte, looped bool) {
	d := h.spare.Swap(nil)
	if d == nil {
		d = new(stack.Datagram)
	}
	defer h.spare.Store(d)
	if !h.parse(b, d) {
		return
	}
	d.Looped = looped
	h.counters.received.add(len(b))
	if f := h.receiver.Load(); f != nil {
		(*f)(d)
	} else {
		h.counters.dropped.Add(1)
	}
}

// parse sets d to the datagram of a frame. It returns false if that is none for the host.
func (h *Host) parse(b []byte, d *stack.Datagram) bool {
	if len(b) < headers || [6]byte(b) != h.mac {
		return false
	}
	ip := b[ethLen:]
	if isUDP := b[12] == 8 && b[13] == 0 && ip[0] == 0x45 && ip[9] == 17; !isUDP {
		return false
	}
	isFragment := ip[6]&0x3f|ip[7] != 0
	total, length := int(binary.BigEndian.Uint16(ip[2:])), int(binary.BigEndian.Uint16(ip[ipLen+4:]))
	switch {
	case binary.BigEndian.Uint16(ip[ipLen+2:]) != stack.RoCEPort || netip.AddrFrom4([4]byte(ip[16:])) != h.cfg.Addr:
		return false
	case total != ipLen+length || length < udpLen || total > len(ip) && len(ip) == ipLen+udpLen, isFragment,
		checksum.Sum(ip[:ipLen], 0) != 0xffff:
		h.counters.malformed.Add(1)
		return false
	}
	payload := ip[ipLen+udpLen : min(total, len(ip))]
	*d = stack.Datagram{
		Src: netip.AddrFrom4([4]byte(ip[12:])), Dst: h.cfg.Addr, SrcPort: binary.BigEndian.Uint16(ip[ipLen:]),
		TrafficClass: ip[1], HopLimit: ip[8], Via: [6]byte(b[6:]),
		Header: ip[: ipLen+udpLen : ipLen+udpLen], Payload: payload, SegmentSize: len(payload),
		Truncated: total > len(ip),
	}
	return true
}
