package kernel

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel/internal/inlet"
)

const (
	// messages is how many superframes, or single datagrams, a sender gathers before it calls the kernel.
	messages     = 16
	senderBuffer = 2 * maxIPPacket
)

// message is one superframe, or a single datagram, in a sender's buffer.
type message struct {
	path       *path
	start, end int
	size       int // payload bytes of each datagram but the last
	segments   int
}

// sender gathers datagrams in a buffer. The message being built is the last of pending if building is true.
type sender struct {
	port     *port
	pending  []message
	building bool
	last     int  // payload bytes of its last datagram
	fresh    bool // Drop may take that back
	view     [inlet.MaxHeader]byte
	batch    sendBatch
	buf      [senderBuffer]byte
}

func newSender(p *port) *sender {
	s := &sender{port: p, pending: make([]message, 0, messages)}
	s.batch.init(s)
	return s
}

// Sender implements [stack.DatagramPort].
func (p *port) Sender() stack.Sender { return p.senders.Get().(*sender) }

// Datagram implements [stack.Sender].
func (s *sender) Datagram(pt stack.Path, n int) (header, payload []byte) {
	p, ok := pt.(*path)
	if !ok || n <= 0 || n > p.mtu {
		return nil, nil
	}
	if !s.extends(p, n) {
		s.begin(p, n)
	}
	m := &s.pending[len(s.pending)-1]
	header = s.view[:p.headers]
	stack.PutLengths(header, n)
	if header[0]>>4 == 4 {
		binary.BigEndian.PutUint16(header[4:], uint16(m.segments)) // as the kernel gives it
	}
	payload = s.buf[m.end : m.end+n : m.end+n]
	m.end += n
	m.segments++
	s.last, s.fresh = n, true
	return header, payload
}

// extends tells whether a datagram can be the next segment of the message being built.
func (s *sender) extends(p *path, n int) bool {
	if !s.building {
		return false
	}
	m := &s.pending[len(s.pending)-1]
	return m.path == p && s.last == m.size && n <= m.size && m.segments < maxSegments && m.end-m.start+n <= maxIPPacket-p.headers &&
		p.port.segments.Load()
}

// begin starts a message.
func (s *sender) begin(p *path, n int) {
	at := 0
	if len(s.pending) > 0 {
		at = s.pending[len(s.pending)-1].end
	}
	if len(s.pending) == messages || at+maxIPPacket > len(s.buf) {
		s.emit()
		at = 0
	}
	s.pending = append(s.pending, message{path: p, start: at, end: at, size: n})
	s.building = true
	copy(s.view[:], p.head[:p.headers])
}

// Drop implements [stack.Sender].
func (s *sender) Drop() {
	if !s.fresh {
		return
	}
	s.fresh = false
	m := &s.pending[len(s.pending)-1]
	m.end -= s.last
	if m.segments--; m.segments == 0 {
		s.pending = s.pending[:len(s.pending)-1]
		s.building = false
		return
	}
	s.last = m.size
}

// emit gives the kernel what was gathered, a socket at a time.
func (s *sender) emit() {
	for rest := s.pending; len(rest) > 0; {
		n := 1
		for n < len(rest) && rest[n].path.out == rest[0].path.out {
			n++
		}
		s.batch.send(rest[:n])
		rest = rest[n:]
	}
	clear(s.pending)
	s.pending, s.building, s.fresh = s.pending[:0], false, false
}

// Flush implements [stack.Sender].
func (s *sender) Flush() {
	s.emit()
	s.port.senders.Put(s)
}

// count counts a message that the kernel has taken, or refused.
func (s *sender) count(m *message, err error) {
	c := &s.port.counters
	if err != nil {
		c.txErrors.Add(1)
		return
	}
	n := uint64(m.segments)
	c.txFrames.Add(1)
	c.txDatagrams.Add(n)
	c.txBytes.Add(uint64(ethLen + m.path.headers + m.end - m.start))
	if !s.port.nic.has(m.path.ends.Dst) {
		c.sentPackets.Add(n)
		if m.path.ends.Dst.IsMulticast() {
			c.sentMulticast.Add(n)
		}
		c.sentBytes.Add(n*uint64(ethLen+m.path.headers) + uint64(m.end-m.start))
	}
}
