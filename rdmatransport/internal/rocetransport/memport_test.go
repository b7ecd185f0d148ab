package rocetransport_test

// An interface in memory, which records what the engine sends.

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
)

// host is a stack.Network of memory interfaces, with only the methods that the engine uses.
type host struct {
	stack.Network
	ports []*port
}

func (h *host) NICs() (nics []stack.NIC) {
	for _, p := range h.ports {
		nics = append(nics, p)
	}
	return nics
}

// port is a NIC and its datagram port.
type port struct {
	stack.NIC
	stack.DatagramPort

	t       testing.TB
	gids    []netip.Addr
	receive func(*stack.Datagram)
	arrived []*stack.Datagram
	batch   int  // datagrams in a frame; 0 is 1
	discard bool // for benchmarks: sent packets are discarded
	cuts    int  // calls of Cut
	// The FLUSHes have the ICRC of rxe.
	rxeFlush bool

	mu     sync.Mutex
	sent   []wire.Packet
	frames [][]byte                // the same, from the IP header on
	lost   func(*wire.Packet) bool // selects sent packets that are lost
	free   []*sender
	paths  int // number of open paths
	joins  map[netip.Addr]int
}

func (p *port) Name() string                      { return "mem0" }
func (p *port) MAC() net.HardwareAddr             { return net.HardwareAddr{2, 0, 0, 0, 0, 1} }
func (p *port) MTU() int                          { return 4500 }
func (p *port) EndPoll()                          {}
func (p *port) Counters() stack.Counters          { return stack.Counters{} }
func (p *port) State() stack.LinkState            { return stack.LinkUp }
func (p *port) Watch(func(stack.Change))          {}
func (p *port) GIDs() []netip.Addr                { return p.gids }
func (p *port) Datagrams() stack.DatagramPort     { return p }
func (p *port) Frames() stack.FramePort           { return struct{ stack.FramePort }{} }
func (p *port) Receive(f func(d *stack.Datagram)) { p.receive = f }

// Poll delivers the packets in arrived.
func (p *port) Poll() bool {
	all := p.arrived
	p.arrived = nil
	for _, d := range all {
		d.Polled = true
		p.receive(d)
	}
	return len(all) > 0
}

func (p *port) Path(a stack.PathAttr) (stack.Path, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paths++
	return &path{p, a}, nil
}

func (p *port) Join(group netip.Addr) error {
	p.joins[group]++
	return nil
}

func (p *port) Leave(group netip.Addr) error {
	p.joins[group]--
	return nil
}

func (p *port) Sender() stack.Sender {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		s := p.free[n-1]
		p.free = p.free[:n-1]
		return s
	}
	return &sender{port: p, buf: make([]byte, 0, 128<<10)}
}

type path struct {
	port *port
	attr stack.PathAttr
}

func (p *path) Ends() *stack.Ends   { return &stack.Ends{Src: p.attr.Src, Dst: p.attr.Dst} }
func (p *path) MTU() int            { return p.port.MTU() - headerLen(p.attr.Src) }
func (p *path) Batch(int) int       { return max(1, p.port.batch) }
func (p *path) LocalNIC() stack.NIC { return nil }
func (p *path) Close() {
	p.port.mu.Lock()
	defer p.port.mu.Unlock()
	p.port.paths--
}

type sender struct {
	port *port
	buf  []byte
	last int // offset of the last one in buf
	ends []int
}

func (s *sender) Datagram(p stack.Path, n int) (header, payload []byte) {
	if n <= 0 || n > p.MTU() {
		return nil, nil
	}
	s.settle()
	a := p.(*path).attr
	s.last = len(s.buf)
	h := headerLen(a.Src)
	if s.port.discard && s.last+h+n > cap(s.buf) {
		s.buf, s.ends, s.last = s.buf[:0], s.ends[:0], 0
	}
	s.buf = slices.Grow(s.buf, h+n)[:s.last+h+n]
	header = s.buf[s.last : s.last+h]
	putHeader(header, a.Src, a.Dst, a.SrcPort, 0, n)
	payload = s.buf[s.last+h:]
	for i := 0; !s.port.discard && i < len(payload); i++ {
		payload[i] = 0x5a // every byte must be written
	}
	return header, payload
}

func (s *sender) Drop() {
	if len(s.buf) == s.last {
		panic("Drop without Datagram")
	}
	s.buf = s.buf[:s.last]
}

func (s *sender) Cut() { s.port.cuts++ }

// settle completes the open datagram.
func (s *sender) settle() {
	if len(s.buf) > s.last {
		s.ends = append(s.ends, len(s.buf))
	}
	s.last = len(s.buf)
}

func (s *sender) Flush() {
	s.settle()
	p := s.port
	p.mu.Lock()
	defer p.mu.Unlock()
	at := 0
	for _, end := range s.ends {
		if p.discard {
			break
		}
		d := s.buf[at:end]
		at = end
		h := 28
		if d[0]>>4 == 6 {
			h = 48
		}
		var pkt wire.Packet
		b := bytes.Clone(d[h:])
		if err := pkt.Parse(b); err != nil {
			p.t.Errorf("the engine sends %x: %v", b, err)
			continue
		}
		if !wire.CheckICRC(d[:h], b) && !(p.rxeFlush && wire.CheckRxeFlushICRC(d[:h], b)) {
			p.t.Errorf("the engine sends %v with a wrong ICRC", pkt.Opcode)
		}
		if pad := b[len(b)-wire.ICRCLen-int(pkt.Pad) : len(b)-wire.ICRCLen]; len(bytes.Trim(pad, "\x00")) > 0 {
			p.t.Errorf("the engine sends %v with pad %x", pkt.Opcode, pad)
		}
		if p.lost == nil || !p.lost(&pkt) {
			p.sent = append(p.sent, pkt)
			p.frames = append(p.frames, bytes.Clone(d))
		}
	}
	s.buf, s.ends, s.last = s.buf[:0], s.ends[:0], 0
	p.free = append(p.free, s)
}

func headerLen(a netip.Addr) int {
	if a.Is4() {
		return 28
	}
	return 48
}

// putHeader writes IP and UDP headers for n bytes of UDP payload, as segment id of a superframe.
func putHeader(b []byte, src, dst netip.Addr, srcPort uint16, id, n int) {
	clear(b)
	if src.Is4() {
		b[0], b[6], b[8], b[9] = 0x45, 0x40, 64, 17
		binary.BigEndian.PutUint16(b[2:], uint16(28+n))
		binary.BigEndian.PutUint16(b[4:], uint16(id))
		s, d := src.As4(), dst.As4()
		copy(b[12:], s[:])
		copy(b[16:], d[:])
	} else {
		b[0], b[6], b[7] = 0x60, 17, 64
		binary.BigEndian.PutUint16(b[4:], uint16(8+n))
		s, d := src.As16(), dst.As16()
		copy(b[8:], s[:])
		copy(b[24:], d[:])
	}
	u := b[len(b)-8:]
	binary.BigEndian.PutUint16(u, srcPort)
	binary.BigEndian.PutUint16(u[2:], stack.RoCEPort)
	binary.BigEndian.PutUint16(u[4:], uint16(8+n))
}
