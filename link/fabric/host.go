package fabric

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// Host is a host's adapter, a link.Link: a stack such as netstack or static opens it, and a device
// the stack. Its time is that of the fabric.
type Host struct {
	f      *Fabric
	shard  *shard
	origin origin
	index  int32
	name   string
	mac    [6]byte
	port   *Port
	flows  map[uint64]*flow // what waits for the cable, or may
	random *rand.ChaCha8

	receiver link.Receiver
	receives atomic.Bool // receiver is set: for the switches of other shards
	batch    [1]link.Frame
	watch    func()
	removed  bool
	pausing  uint8 // classes that it stops

	digest, sentFrames uint64
	marked             sent      // at the mark that its shard has resolved
	recent             []sending // while others run; see remember

	parked  []*Process // they wait for something
	changed bool       // and it may have happened
}

var (
	_ link.Link    = (*Host)(nil)
	_ link.Carrier = (*Host)(nil)
	_ link.Clocked = (*Host)(nil)
	_ link.Queues  = (*Host)(nil)
)

// macPrefix begins the addresses of hosts. They are locally administered.
var macPrefix = [3]byte{2, 'F', 'A'}

func (f *Fabric) newHost(i int) *Host {
	n := i + 1
	h := &Host{f: f, origin: originOf(n), index: int32(i), name: fmt.Sprint("host", i), flows: map[uint64]*flow{},
		mac: [6]byte{macPrefix[0], macPrefix[1], macPrefix[2], byte(n >> 16), byte(n >> 8), byte(n)}}
	h.random = f.newRandom(uint64(n))
	return h
}

// Index returns the index of the host in Fabric.Hosts.
func (h *Host) Index() int { return int(h.index) }

// Addr returns an address for the host: 10.0.0.0 plus its index plus one.
func (h *Host) Addr() netip.Addr { return netip.AddrFrom4([4]byte{10, h.mac[3], h.mac[4], h.mac[5]}) }

// Prefix returns Addr with the length of the prefix that all hosts share, as text for netstack.
func (h *Host) Prefix() string { return h.Addr().String() + "/8" }

// Neighbour returns the MAC address of the host with an address of Addr.
func (f *Fabric) Neighbour(a netip.Addr) (mac [6]byte, ok bool) {
	if !a.Is4() {
		return mac, false
	}
	b := a.As4()
	n := int(b[1])<<16 | int(b[2])<<8 | int(b[3])
	if b[0] != 10 || n < 1 || n > len(f.hosts) {
		return mac, false
	}
	return f.hosts[n-1].mac, true
}

// Port returns the port of the adapter.
func (h *Host) Port() *Port { return h.port }

// Name implements link.Link: host0 and so on.
func (h *Host) Name() string { return h.name }

// MAC implements link.Link.
func (h *Host) MAC() net.HardwareAddr { return h.mac[:] }

// MTU implements link.Link.
func (h *Host) MTU() int { return h.f.cfg.MTU }

// Offloads implements link.Link: there are none, as a frame on the wire is a packet.
func (h *Host) Offloads() link.Offloads { return link.Offloads{} }

// Now returns the host's virtual time since the fabric began.
func (h *Host) Now() time.Duration { return time.Duration(h.shard.now / nanosecond) }

// Clock implements link.Clocked.
func (h *Host) Clock() clock.Clock { return clock.New(hostTime{h}) }

// Attach implements link.Link. With Config.Workers, it is not for the time when other hosts run:
// whether a broadcast comes before or after is not certain then.
func (h *Host) Attach(recv link.Receiver) {
	h.receiver = recv
	h.receives.Store(recv != nil)
}

// State implements link.Carrier.
func (h *Host) State() link.State {
	switch {
	case h.removed:
		return link.Removed
	case h.port.down:
		return link.NoCarrier
	}
	return link.Up
}

// Watch implements link.Carrier.
func (h *Host) Watch(f func()) { h.watch = f }

func (h *Host) carrierChanged() {
	h.touched()
	if h.watch != nil {
		h.watch()
	}
}

// Close implements link.Link.
func (h *Host) Close() error {
	h.removed, h.watch = true, nil
	h.Attach(nil)
	return nil
}

// Write implements link.Link.
func (h *Host) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		fr := &frames[i]
		n := fr.Len()
		switch {
		case h.removed:
			return i, os.ErrClosed
		case fr.Segmentation != link.NoSegmentation || fr.NeedsChecksum:
			return i, errors.ErrUnsupported
		case n < link.EthernetHeaderLen || n > h.f.maxFrame():
			return i, fmt.Errorf("fabric: %s: a frame of %d bytes with an MTU of %d", h.name, n, h.f.cfg.MTU)
		}
		p := h.shard.newPacket(n)
		at := copy(p.frame, fr.Data)
		for _, b := range fr.More {
			at += copy(p.frame[at:], b)
		}
		p.from = h.index
		if !h.f.classify(p) {
			h.shard.free(p)
			continue
		}
		h.port.send(p)
	}
	return len(frames), nil
}

// sent is called when a packet leaves the adapter.
func (h *Host) sent(p *packet) {
	s := h.shard
	s.counters.Sent++
	if h.f.lookahead > 0 {
		h.remember()
	}
	h.sentFrames++
	t := uint64(s.now)
	h.digest = h.digest*0x9e3779b97f4a7c15 ^ t ^ t>>29 ^ uint64(crc32.Update(uint32(h.digest>>32), castagnoli(), p.frame))<<16
}

// castagnoli is made when it is first needed: that takes longer than the initialization of most
// packages.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// receive passes a packet to the host.
func (h *Host) receive(p *packet) {
	h.shard.counters.Delivered++
	if h.receiver != nil {
		h.shard.acting = h
		h.touched()
		h.batch[0] = link.Frame{Data: p.frame}
		h.receiver(h.batch[:])
		h.batch[0] = link.Frame{}
	}
	h.shard.free(p)
}
