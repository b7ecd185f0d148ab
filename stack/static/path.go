package static

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/stack"
)

// path is a path to one host.
type path struct {
	h    *Host
	ends stack.Ends
	head [headers]byte
	id   atomic.Uint32 // IPv4 identification of the last datagram

	qpn   uint32     // of all datagrams, or 0
	queue link.Queue // nil: none
}

var _ stack.Queued = (*path)(nil)

// Path implements [stack.DatagramPort].
func (n nic) Path(a stack.PathAttr) (stack.Path, error) {
	if a.V1 {
		return nil, fmt.Errorf("static: RoCE v1: %w", errors.ErrUnsupported)
	}
	src, dst := a.Src.Unmap(), a.Dst.Unmap()
	if src != n.h.cfg.Addr {
		return nil, fmt.Errorf("static: a path from %v: %w", a.Src, syscall.EADDRNOTAVAIL)
	}
	mac, ok := n.h.neighbour(dst)
	if a.Via != ([6]byte{}) {
		mac, ok = a.Via, dst.Is4()
	}
	if !ok {
		return nil, fmt.Errorf("static: a path to %v, which is no neighbour: %w", a.Dst, syscall.ENETUNREACH)
	}
	p := &path{h: n.h, ends: stack.Ends{Src: a.Src, Dst: a.Dst}, qpn: a.QPN}
	p.id.Store(n.h.clock.Uint32())
	b := p.head[:]
	copy(b, mac[:])
	copy(b[6:], n.h.mac[:])
	b[12] = 8
	ip := b[ethLen:]
	s4, d4 := src.As4(), dst.As4()
	ip[0], ip[1], ip[6], ip[8], ip[9] = 0x45, a.TrafficClass, 0x40, a.HopLimit, 17
	if a.HopLimit == 0 {
		ip[8] = 64
	}
	copy(ip[12:], s4[:])
	copy(ip[16:], d4[:])
	binary.BigEndian.PutUint16(ip[ipLen:], a.SrcPort)
	binary.BigEndian.PutUint16(ip[ipLen+2:], stack.RoCEPort)
	return p, nil
}

// Ends implements [stack.Path].
func (p *path) Ends() *stack.Ends { return &p.ends }

// MTU implements [stack.Path].
func (p *path) MTU() int { return p.h.link.MTU() - ipLen - udpLen }

// Batch implements [stack.Path].
func (p *path) Batch(int) int { return 1 }

// LocalNIC implements [stack.Path]. All datagrams are packets on the link.
func (p *path) LocalNIC() stack.NIC { return nil }

// Queue implements [stack.Queued].
func (p *path) Queue(ready func()) bool {
	if p.h.queues == nil || p.qpn == 0 {
		return false
	}
	const bthLen, destQP = 12, 4 // IBTA Vol 1 §9.2: the destination QP has bytes 5 to 7
	b := append(p.head[:], make([]byte, bthLen)...)
	binary.BigEndian.PutUint32(b[headers+destQP:], p.qpn)
	p.queue = p.h.queues.Queue(b, ready)
	return p.queue != nil
}

// Full implements [stack.Queued].
func (p *path) Full() bool { return p.queue.Full() }

// Close implements [stack.Path].
func (p *path) Close() {
	if p.queue != nil {
		p.queue.Close()
	}
}

// sender collects frames in a buffer.
type sender struct {
	h      *Host
	frames []link.Frame
	view   [ipLen + udpLen]byte // what Datagram returns
	used   int
	buf    []byte
}

// batch is the number of the largest frames that a sender collects.
const batch = 16

var senders = sync.Pool{New: func() any { return new(sender) }}

// Sender implements [stack.DatagramPort].
func (n nic) Sender() stack.Sender {
	s := senders.Get().(*sender)
	s.h = n.h
	if size := batch * (ethLen + n.MTU()); len(s.buf) < size {
		s.buf = make([]byte, size)
	}
	return s
}

// Datagram implements [stack.Sender].
func (s *sender) Datagram(sp stack.Path, n int) (header, payload []byte) {
	p, ok := sp.(*path)
	if !ok || n <= 0 || n > p.MTU() {
		return nil, nil
	}
	if len(s.buf)-s.used < headers+n {
		s.write()
	}
	b := s.buf[s.used : s.used+headers+n : s.used+headers+n]
	s.used += len(b)
	copy(b, p.head[:])
	ip := b[ethLen:headers]
	stack.PutLengths(ip, n)
	binary.BigEndian.PutUint16(ip[4:], uint16(p.id.Add(1)))
	copy(s.view[:], ip)
	checksum.PutIPv4(ip[:ipLen])
	s.frames = append(s.frames, link.Frame{Data: b})
	return s.view[:], b[headers:]
}

// Drop implements [stack.Sender].
func (s *sender) Drop() {
	if n := len(s.frames); n > 0 {
		s.used -= len(s.frames[n-1].Data)
		s.frames = s.frames[:n-1]
	}
}

// Cut implements [stack.Sender]: each datagram has a frame of its own.
func (s *sender) Cut() {}

// Flush implements [stack.Sender].
func (s *sender) Flush() {
	s.write()
	s.h = nil
	senders.Put(s)
}

// write passes the frames to the link, or back to the host. All those between two calls of Flush
// may be for different hosts.
func (s *sender) write() {
	for frames := s.frames; len(frames) > 0; {
		if s.h.isOwn(frames[0].Data) {
			s.h.loop.add(frames[0].Data)
			frames = frames[1:]
			continue
		}
		n := 1
		for n < len(frames) && !s.h.isOwn(frames[n].Data) {
			n++
		}
		frames = frames[s.send(frames[:n]):]
	}
	clear(s.frames)
	s.frames, s.used = s.frames[:0], 0
}

// send writes frames to the link. It returns their number.
func (s *sender) send(all []link.Frame) int {
	for frames := all; len(frames) > 0; {
		n, err := s.h.link.Write(frames)
		for i := range frames[:n] {
			s.h.counters.sent.add(len(frames[i].Data))
		}
		if frames = frames[n:]; err != nil && len(frames) > 0 {
			s.h.counters.txErrors.Add(1)
			frames = frames[1:]
		}
	}
	return len(all)
}
