package kernel

import (
	"encoding/binary"
	"net/netip"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

const (
	// maxMessages is the number of superframes or single datagrams that a sender collects per
	// system call.
	maxMessages  = 16
	senderBuffer = 2 * maxIPPacket
)

// message is one superframe, or a single datagram, in a sender's buffer.
type message struct {
	path       *path
	start, end int
	size       int // payload bytes of each datagram but the last
	segments   int
}

// sender collects datagrams in a buffer. If building is true, the last message of pending is being
// built. If there are rings to the peer's process, the message is built in the ring, and is the
// only one. Offsets then count from the beginning of its payload too.
type sender struct {
	port        *port
	pending     []message
	reservation link.Reservation // where the message is built; Data is nil if that is buf
	arrival     hub.Arrival
	writer      hub.Writer
	building    bool
	last        int  // payload bytes of the last datagram
	droppable   bool // Drop may remove the last datagram
	view        [rxsocket.MaxHeader]byte
	batch       sendBatch
	buf         [senderBuffer]byte
}

func newSender(p *port) *sender {
	s := &sender{port: p, pending: make([]message, 0, maxMessages)}
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
	if room := s.reservation.Data; room != nil {
		payload = room[hub.RecordLen+m.end : hub.RecordLen+m.end+n : hub.RecordLen+m.end+n]
		s.extend(m, n)
		return nil, payload
	}
	header = s.view[:p.headers]
	stack.PutLengths(header, n)
	if header[0]>>4 == 4 {
		binary.BigEndian.PutUint16(header[4:], uint16(m.segments)) // the same as the kernel assigns
	}
	payload = s.buf[m.end : m.end+n : m.end+n]
	s.extend(m, n)
	return header, payload
}

func (s *sender) extend(m *message, n int) {
	m.end += n
	m.segments++
	s.last, s.droppable = n, true
}

// extends reports whether a datagram can be the next segment of the message being built.
func (s *sender) extends(p *path, n int) bool {
	if !s.building {
		return false
	}
	m := &s.pending[len(s.pending)-1]
	ended := s.last != m.size // a shorter datagram ended it
	full := m.segments >= maxSegments || m.end-m.start+n > maxIPPacket-p.headers
	if m.path != p || ended || full || n > m.size {
		return false
	}
	if room := s.reservation.Data; room != nil {
		return hub.RecordLen+m.end+n <= len(room)
	}
	return p.port.segments.Load() || p.isDirect()
}

// begin starts a message.
func (s *sender) begin(p *path, n int) {
	if s.beginInRing(p, n) {
		return
	}
	at := 0
	if len(s.pending) > 0 {
		at = s.pending[len(s.pending)-1].end
	}
	if len(s.pending) == maxMessages || at+maxIPPacket > len(s.buf) {
		s.emit()
		at = 0
	}
	s.pending = append(s.pending, message{path: p, start: at, end: at, size: n})
	s.building = true
	copy(s.view[:], p.head[:p.headers])
}

// After a datagram of at least bulk bytes, many more are expected; after a shorter one, few.
const (
	bulk    = 1024
	fewMore = 4
)

// beginInRing starts a message in the ring of the peer's process, if there is one with room.
func (s *sender) beginInRing(p *path, n int) bool {
	if s.reservation.Data != nil {
		s.emit()
	}
	if !p.isDirect() {
		return false
	}
	s.emit() // earlier messages precede it
	count := fewMore
	if n >= bulk {
		count = maxSegments
	}
	if s.reservation = p.route.Reserve(max(n, min(count*n, maxIPPacket-p.headers))); s.reservation.Data == nil {
		return false
	}
	s.pending = append(s.pending, message{path: p, size: n})
	s.building = true
	return true
}

// commit sends the message that was built in the peer's ring.
func (s *sender) commit(m *message) {
	s.describe(m)
	s.writer.Commit(&s.reservation, &s.arrival, m.end)
	s.reservation = link.Reservation{}
	s.count(m, nil)
}

// describe gives the peer's process the same information as a socket.
func (s *sender) describe(m *message) {
	p := m.path
	s.arrival = hub.Arrival{From: netip.AddrPortFrom(p.ends.Src, p.out.port), Dst: p.ends.Dst,
		TrafficClass: p.trafficClass, TTL: p.hopLimit}
	if m.segments > 1 {
		s.arrival.Segment = m.size
	}
}

// sendDirect queues a message for the peer's ring. It returns false if the message must be sent
// through the socket.
func (s *sender) sendDirect(m *message) bool {
	if !m.path.isDirect() {
		return false
	}
	s.describe(m)
	s.arrival.Payload = s.buf[m.start:m.end]
	if !m.path.route.Send(&s.arrival, &s.writer) {
		return false
	}
	s.count(m, nil)
	return true
}

// Drop implements [stack.Sender].
func (s *sender) Drop() {
	if !s.droppable {
		return
	}
	s.droppable = false
	m := &s.pending[len(s.pending)-1]
	m.end -= s.last
	if m.segments--; m.segments == 0 {
		if s.reservation.Data != nil {
			s.writer.Commit(&s.reservation, nil, 0)
			s.reservation = link.Reservation{}
		}
		s.pending = s.pending[:len(s.pending)-1]
		s.building = false
		return
	}
	s.last = m.size
}

// Cut implements [stack.Sender].
func (s *sender) Cut() {
	if s.reservation.Data != nil {
		s.emit()
	}
	s.building, s.droppable = false, false
}

// emit passes the collected messages to the kernel, one socket at a time. If the message was built
// in the peer's ring, emit commits it instead.
func (s *sender) emit() {
	if s.reservation.Data != nil && s.building {
		s.commit(&s.pending[0])
		s.pending[0] = message{}
		s.pending = s.pending[:0]
	}
	for rest := s.pending; len(rest) > 0; {
		n := 1
		if s.sendDirect(&rest[0]) {
			rest = rest[n:]
			continue
		}
		for n < len(rest) && rest[n].path.out == rest[0].path.out && !rest[n].path.isDirect() {
			n++
		}
		s.batch.send(rest[:n])
		rest = rest[n:]
	}
	clear(s.pending)
	s.pending, s.building, s.droppable = s.pending[:0], false, false
}

// Flush implements [stack.Sender].
func (s *sender) Flush() {
	s.emit()
	s.port.senders.Put(s)
}

// count counts a message that the kernel has accepted or refused.
func (s *sender) count(m *message, err error) {
	c := &s.port.counters
	if err != nil {
		c.txErrors.Add(1)
		return
	}
	n := uint64(m.segments)
	c.txFrames.Add(1)
	c.txDatagrams.Add(n)
	if s.port.leaves(m.path.ends.Dst) {
		c.sentBytes.Add(n*uint64(ethLen+m.path.headers) + uint64(m.end-m.start))
		c.sentPackets.Add(n)
		if m.path.ends.Dst.IsMulticast() {
			c.sentMulticast.Add(n)
		}
	}
}
