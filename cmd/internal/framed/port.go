package framed

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// port sends and receives datagrams through a link.
type port struct {
	medium         *medium
	link           link.Link
	singleDatagram bool
	mac            []byte
	senders        sync.Pool

	mu       sync.RWMutex // held for reading while the receiver runs
	receiver func(*stack.Datagram)
}

var _ stack.DatagramPort = (*port)(nil)

func newPort(m *medium, l link.Link) *port {
	p := &port{medium: m, link: l, mac: m.MAC()}
	p.senders.New = func() any { return &sender{port: p} }
	return p
}

// Receive implements [stack.DatagramPort].
func (p *port) Receive(f func(*stack.Datagram)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.receiver = f
}

// deliver passes frames of the link to the receiver.
func (p *port) deliver(frames []link.Frame) {
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.receiver == nil {
		return
	}
	for i := range frames {
		f := &frames[i]
		header, payload, ok := parseFrame(f)
		if !ok {
			continue
		}
		size := len(payload)
		if f.Segmentation == link.UDP {
			size = int(f.SegmentSize)
		}
		from := flowOf(header)
		p.receiver(&stack.Datagram{
			Src: from.src, Dst: from.dst, SrcPort: from.srcPort, TrafficClass: from.trafficClass, HopLimit: from.hopLimit,
			Polled: f.Polled, Looped: slices.Contains(p.medium.nic.GIDs(), from.src),
			IDGuessed: from.src.Is4() && p.medium.guessed.Load(), SrcQPNs: senderOf(f.Data[6:]),
			Header: header, Payload: payload, SegmentSize: size,
		})
	}
}

// path is a path of the stack, with the headers of its datagrams.
type path struct {
	*shared
	port *port
	head []byte // without lengths
	once sync.Once
}

var _ stack.Path = (*path)(nil)

// Path implements [stack.DatagramPort].
func (p *port) Path(a stack.PathAttr) (stack.Path, error) {
	a.QPN, a.OneSender = 0, false // otherwise the stack might bypass the link
	inner, err := p.medium.inner.Path(a)
	if err != nil {
		return nil, err
	}
	// A first datagram shows which headers the stack uses.
	s := p.medium.inner.Sender()
	header, _ := s.Datagram(inner, 1)
	t := &path{port: p, head: slices.Clone(header)}
	s.Drop()
	s.Flush()
	if len(t.head) < ipv4Len+udpLen {
		inner.Close()
		return nil, fmt.Errorf("path to %v: no datagrams can be sent", a.Dst)
	}
	t.shared = p.medium.acquire(flowOf(t.head), inner)
	return t, nil
}

// Batch implements [stack.Path].
func (t *path) Batch(n int) int {
	if t.port.singleDatagram {
		return 1
	}
	return t.shared.Batch(n)
}

// LocalNIC implements [stack.Path]: nothing bypasses the link.
func (t *path) LocalNIC() stack.NIC { return nil }

// Close implements [stack.Path].
func (t *path) Close() { t.once.Do(func() { t.port.medium.release(t.shared) }) }

// Sender implements [stack.DatagramPort].
func (p *port) Sender() stack.Sender { return p.senders.Get().(*sender) }

// sender collects the datagrams of one frame.
type sender struct {
	port      *port
	path      *path // of the frame; nil if none
	end       int   // bytes of the frame
	size      int   // payload bytes of each datagram but the last
	last      int   // payload bytes of the last datagram
	segments  int
	droppable bool // Drop may remove the last datagram
	view      [ipv6Len + udpLen]byte
	frames    [1]link.Frame
	buf       [ethLen + maxIPPacket]byte
}

// Datagram implements [stack.Sender].
func (s *sender) Datagram(pt stack.Path, n int) (header, payload []byte) {
	p, ok := pt.(*path)
	if !ok || n <= 0 || n > p.MTU() {
		return nil, nil
	}
	if p != s.path || s.last != s.size || n > s.size || s.segments >= p.Batch(s.size) || s.end+n > len(s.buf) {
		s.emit()
		s.path, s.size, s.end = p, n, ethLen+copy(s.buf[ethLen:], p.head)
	}
	header = s.view[:copy(s.view[:], p.head)]
	stack.PutLengths(header, n)
	if header[0]>>4 == 4 { // the identification is incremented within a superframe
		binary.BigEndian.PutUint16(header[4:], binary.BigEndian.Uint16(header[4:])+uint16(s.segments))
	}
	payload = s.buf[s.end : s.end+n : s.end+n]
	s.end += n
	s.segments++
	s.last, s.droppable = n, true
	return header, payload
}

// Drop implements [stack.Sender].
func (s *sender) Drop() {
	if !s.droppable {
		return
	}
	s.end -= s.last
	s.last, s.droppable = s.size, false
	if s.segments--; s.segments == 0 {
		s.path = nil
	}
}

// Cut implements [stack.Sender].
func (s *sender) Cut() { s.emit() }

// emit writes the frame. A frame that the link refuses is lost.
func (s *sender) emit() {
	if s.path != nil {
		s.frames[0] = buildFrame(s.buf[:s.end], ethLen+len(s.path.head), s.size, s.port.mac, peerMAC)
		_, _ = s.port.link.Write(s.frames[:])
	}
	s.path, s.segments, s.droppable = nil, 0, false
}

// Flush implements [stack.Sender].
func (s *sender) Flush() {
	s.emit()
	s.port.senders.Put(s)
}
