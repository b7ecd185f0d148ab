package netstack

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// frames is an interface's frame port.
type frames struct{ nic *Interface }

// Frames implements NIC.
func (n *Interface) Frames() stack.FramePort { return frames{n} }

// Sender implements FramePort.
func (p frames) Sender() stack.FrameSender {
	s := p.nic.port.take()
	s.raw = true
	return s
}

// Steer implements FramePort.
func (p frames) Steer(s *stack.Steering) { p.nic.steer(s) }

func (n *Interface) steer(s *stack.Steering) {
	n.steerMu.Lock()
	defer n.steerMu.Unlock()
	if n.closed.Load() {
		s = nil
	}
	if s == nil {
		n.endpoint.SetSteering(nil)
	} else {
		n.endpoint.SetSteering(func(f *link.Frame) bool { return n.steered(s, f) })
	}
	n.sniff(s)
}

// sniff passes copies of written frames to s, or to no function if s does not want them.
func (n *Interface) sniff(s *stack.Steering) {
	now := n.link.sniffer.Load()
	switch wanted := s != nil && s.Sniff != nil; {
	case wanted && now != nil:
		now.show.Store(&s.Sniff)
	case wanted:
		n.link.sniffer.Store(newSniffer(&s.Sniff))
		registry.changes.Add(1)
	case now != nil:
		n.link.sniffer.Store(nil)
		now.close()
		registry.changes.Add(1)
	}
}

// steered passes a received frame to the functions of s that apply. It returns true if the host
// must not get the frame.
func (n *Interface) steered(s *stack.Steering, f *link.Frame) bool {
	if s.Sniff != nil {
		each(f, s.Sniff)
	}
	dst := [6]byte(f.Data)
	group := dst[0]&1 != 0
	if (group || dst == n.mac) && n.roce(f) {
		return true
	}
	if s.Take != nil && takes(f, s.Take) {
		return true
	}
	if s.Rest == nil || dst == n.mac || group && n.listens(f.Data) {
		return false
	}
	each(f, s.Rest)
	return true
}

// roce offers a frame to the datagram port. A tag that only gives a priority is removed. It returns
// false if the frame is not for the port.
func (n *Interface) roce(f *link.Frame) bool {
	whole, tci := f.Data, f.TCI
	if !f.TakeTag() {
		return n.port.handle(f)
	}
	if f.TCI&link.VLANMask == 0 && n.port.handle(f) {
		return true
	}
	f.AppendTagged(whole[:0], 12, f.TCI)
	f.SetTagged(whole)
	f.TCI = tci
	return false
}

var cutters = sync.Pool{New: func() any { return new(link.Cutter) }}

// onePacket reports whether a frame is one finished packet, as it would be on the wire.
func onePacket(f *link.Frame) bool {
	return f.Segmentation == link.NoSegmentation && !f.NeedsChecksum && len(f.More) == 0
}

// each calls show with each packet of a frame.
func each(f *link.Frame, show func([]byte)) {
	if onePacket(f) {
		show(f.Data)
		return
	}
	c := cutters.Get().(*link.Cutter)
	defer cutters.Put(c)
	for b := range c.Packets(f) {
		show(b)
	}
}

// takes calls take with each packet of a frame, and returns the result of the first call.
func takes(f *link.Frame, take func([]byte) bool) bool {
	if onePacket(f) {
		return take(f.Data)
	}
	c := cutters.Get().(*link.Cutter)
	defer cutters.Put(c)
	first, taken := true, false
	for b := range c.Packets(f) {
		if took := take(b); first {
			first, taken = false, took
		}
	}
	return taken
}

// listens reports whether the host is a member of a frame's group. All hosts are members of
// broadcast.
func (n *Interface) listens(frame []byte) bool {
	if [6]byte(frame) == [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} {
		return true
	}
	var group netip.Addr
	switch ip := frame[ethLen:]; {
	case binary.BigEndian.Uint16(frame[12:]) == 0x0800 && len(ip) >= ipv4Len:
		group = netip.AddrFrom4([4]byte(ip[16:]))
	case binary.BigEndian.Uint16(frame[12:]) == 0x86dd && len(ip) >= ipv6Len:
		group = netip.AddrFrom16([16]byte(ip[24:]))
	default:
		return false
	}
	in, err := n.host.stack.IsInGroup(n.id, tcpipAddr(group.Unmap()))
	return in && err == nil
}

// sniffableLink is an interface's link whose output can be sniffed.
type sniffableLink struct {
	link.Link
	inPlace link.InPlace // the link, or nil
	sniffer atomic.Pointer[sniffer]
}

// Write implements link.Link.
func (l *sniffableLink) Write(frames []link.Frame) (int, error) {
	s := l.sniffer.Load()
	if s == nil {
		return l.Link.Write(frames)
	}
	n, err := l.Link.Write(frames)
	for i := range frames[:n] {
		s.add(&frames[i])
	}
	return n, err
}

// sniffer passes copies of frames to a function, on a goroutine of its own, because writers may
// hold locks that the function takes.
type sniffer struct {
	show  atomic.Pointer[func([]byte)]
	queue chan []byte
	stop  chan struct{}
}

// sniffQueue is the number of packets that may wait for the function, more than a superframe has.
// Further ones are dropped.
const sniffQueue = 1024

func newSniffer(show *func([]byte)) *sniffer {
	s := &sniffer{queue: make(chan []byte, sniffQueue), stop: make(chan struct{})}
	s.show.Store(show)
	go func() {
		for {
			select {
			case b := <-s.queue:
				(*s.show.Load())(b)
			case <-s.stop:
				return
			}
		}
	}()
	return s
}

func (s *sniffer) add(f *link.Frame) {
	each(f, func(b []byte) {
		select {
		case s.queue <- slices.Clone(b):
		default: // the function is too slow
		}
	})
}

func (s *sniffer) close() { close(s.stop) }
