package netstack

import (
	"encoding/binary"
	"sync"
	"unsafe"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
)

// A sent datagram takes this path. Datagram returns room in the sender's buffer for headers and
// payload, in the frame being built while the datagram fits. finish completes the frame's headers
// once its payload is written. emit passes the finished frames to the link, which copies or sends
// them, so that the buffer is free again. If the link is memory that the receiver reads
// (link.InPlace), the frame is built there instead, and finish commits it.

// Layout of a sender's buffer: small frames share its first half, and the second half has room for
// a whole superframe. A frame's payload begins on a cache line, because the kernel copies it to the
// beginning of a page.
const (
	maxFrame     = ethLen + 2*link.TagLen + link.MaxSuperframe
	senderBuffer = 2 * (maxFrame + cacheLine)
	cacheLine    = 64
	minFrame     = 60 // IEEE 802.3 §3.2.8, without FCS
)

type sender struct {
	port   *port
	tally  *tally       // counters of the flow that was begun last
	raw    bool         // the sender is a FrameSender
	out    link.Link    // destination of frames
	frames []link.Frame // finished, in buf

	// The frame being built is mem[start:end] on path; path is nil if there is none. mem is
	// reservation's, or buf.
	path        *path
	mem         []byte
	reservation link.Reservation // Data is nil if the frame is built in buf
	mac         uint64           // destination of the reservation
	committed   link.Frame       // the last committed frame; a local variable would escape
	start, end  int
	segments    int
	size        int    // payload bytes of its first segment
	last        int    // payload bytes of its last segment
	id          uint16 // IPv4 ID of its last segment

	ids struct {
		path *path
		last uint32 // last allocated
		left int    // allocated and unused
	}

	droppable bool // Drop may remove the last segment
	whole     int  // length of the frame that Drop may remove; 0 if none

	view [ipv6Len + udpLen]byte // last header that Datagram returned
	skew int                    // offset of buf from a cache line boundary
	buf  [senderBuffer]byte
}

var senders = sync.Pool{New: func() any {
	s := new(sender)
	s.skew = int(uintptr(unsafe.Pointer(&s.buf)) % cacheLine)
	return s
}}

// Sender implements DatagramPort.
func (p *port) Sender() stack.Sender { return p.take() }

func (p *port) take() *sender {
	s := senders.Get().(*sender)
	s.port, s.tally, s.mem = p, &p.sent[0], s.buf[:]
	return s
}

// Datagram implements Sender.
func (s *sender) Datagram(pt stack.Path, n int) (header, payload []byte) {
	p, ok := pt.(*path)
	if !ok || n <= 0 || n > p.mtu {
		return nil, nil
	}
	var id uint16
	if p.v4 {
		id = s.nextID(p)
	}
	if !s.extends(p, n, id) {
		s.begin(p, n, id)
		s.size = n
	}
	s.segments++
	s.last, s.id, s.droppable = n, id, true
	payload = s.mem[s.end : s.end+n : s.end+n]
	s.end += n
	if s.reservation.Data != nil {
		return nil, payload
	}

	header = s.view[:p.headers-ethLen]
	stack.PutLengths(header, n)
	if p.v4 {
		binary.BigEndian.PutUint16(header[4:], id)
	}
	return header, payload
}

// Frame implements FrameSender.
func (s *sender) Frame(n int) []byte {
	l := s.port.nic.link
	if n < ethLen || n > min(ethLen+2*link.TagLen+l.MTU(), maxFrame) {
		return nil
	}
	s.finish()
	if s.out != l || len(s.buf)-s.end < maxFrame {
		s.emit()
		s.out = l
	}
	s.whole = max(n, minFrame)
	b := s.buf[s.end : s.end+s.whole : s.end+s.whole]
	clear(b[n:])
	s.end += s.whole
	s.frames = append(s.frames, link.Frame{Data: b})
	return b[:n:n]
}

// nextID returns the IPv4 ID for a datagram on p. On a path with several senders, it allocates
// sixteen IDs at a time from the second consecutive datagram on, because more datagrams are then
// likely. IDs that are left over are not used.
func (s *sender) nextID(p *path) uint16 {
	if p.oneOnly {
		p.ownID++
		return p.ownID
	}
	const bunch = 16
	switch {
	case s.ids.path != p:
		s.ids.path, s.ids.last, s.ids.left = p, p.ids.Add(1), 0
		return uint16(s.ids.last)
	case s.ids.left == 0:
		s.ids.last, s.ids.left = p.ids.Add(bunch)-bunch, bunch
	}
	s.ids.left--
	s.ids.last++
	return uint16(s.ids.last)
}

// Drop implements Sender.
func (s *sender) Drop() {
	if s.whole > 0 {
		s.end -= s.whole
		s.frames = s.frames[:len(s.frames)-1]
		s.whole = 0
	}
	if s.path == nil || !s.droppable {
		return
	}
	s.droppable = false
	s.end -= s.last
	if s.segments--; s.segments == 0 {
		s.end, s.path = s.start, nil
		if s.reservation.Data != nil {
			s.commit(&link.Frame{}, 0)
		}
		return
	}
	s.last, s.id = s.size, s.id-1
}

// extends reports whether a datagram can be the next segment of the frame being built. The IDs must
// be consecutive, because they are incremented when the superframe is cut. Otherwise the ID of
// another sender on the path could be used twice.
func (s *sender) extends(p *path, n int, id uint16) bool {
	if s.path != p || !p.uso || s.last != s.size || n > s.size { // another path, or not of equal size
		return false
	}
	if p.v4 && id != s.id+1 {
		return false
	}
	return s.segments < link.MaxSegments && s.end-s.start-ethLen+n <= link.MaxSuperframe && s.end+n <= len(s.mem)
}

// After a datagram of at least bulk bytes, many more are expected; after a shorter one, few.
const (
	bulk    = 1024
	fewMore = 4
)

// beginInPlace builds the frame in memory that the receiver reads, if possible. n is the length of
// the first datagram.
func (s *sender) beginInPlace(p *path, n int) bool {
	to := p.from.link
	if to.inPlace == nil || p.nb == nil || p.ends.V1 || to.sniffer.Load() != nil {
		return false
	}
	mac := p.nb.lookup()
	if mac == 0 {
		return false
	}
	most := p.headers + n
	if p.uso && n >= bulk {
		most = min(p.headers+link.MaxSegments*n, ethLen+link.MaxSuperframe)
	} else if p.uso {
		most = p.headers + fewMore*n
	}
	s.emit() // finished frames are sent before it
	var dst [8]byte
	putMAC(dst[:], mac)
	room := to.inPlace.Reserve([6]byte(dst[:]), most)
	if room.Data == nil {
		return false
	}
	s.reservation, s.mem, s.mac = room, room.Data, mac
	return true
}

// Cut implements Sender.
func (s *sender) Cut() { s.finish() }

// commit sends n bytes of the reservation as a frame with the fields of f.
func (s *sender) commit(f *link.Frame, n int) {
	s.committed = *f
	s.reservation.Owner.Commit(s.reservation.At, &s.committed, n)
	s.reservation, s.mem, s.start, s.end = link.Reservation{}, s.buf[:], 0, 0
}

// begin finishes the frame being built and starts the next with p's headers.
func (s *sender) begin(p *path, n int, id uint16) {
	s.finish()
	if s.out != p.out || len(s.buf)-s.end < maxFrame+cacheLine {
		s.emit()
		s.out = p.out
	}
	placed := s.beginInPlace(p, n)
	if !placed {
		s.end += -(s.skew + s.end + p.headers) & (cacheLine - 1)
	}
	s.path, s.start, s.segments = p, s.end, 0
	s.tally = &s.port.sent[byte(p.srcPort>>8^p.srcPort)%lanes]
	s.end += copy(s.mem[s.end:], p.template[:p.headers])
	if placed {
		putMAC(s.mem, s.mac)
		binary.BigEndian.PutUint16(s.mem[p.headers-udpLen:], p.srcPort)
		if p.v4 {
			binary.BigEndian.PutUint16(s.mem[ethLen+4:], id)
		}
		return
	}
	copy(s.view[:], p.template[ethLen:p.headers])
	if p.ends.V1 {
		return
	}
	binary.BigEndian.PutUint16(s.mem[s.start+p.headers-udpLen:], p.srcPort)
	binary.BigEndian.PutUint16(s.view[p.headers-ethLen-udpLen:], p.srcPort)
	if p.v4 {
		binary.BigEndian.PutUint16(s.mem[s.start+ethLen+4:], id)
	}
}

// finish completes the frame being built and adds it to frames.
func (s *sender) finish() {
	p := s.path
	if p == nil {
		return
	}
	s.path = nil
	f := link.Frame{Data: s.mem[s.start:s.end:s.end], TCI: uint16(p.attr.Priority) << link.PriorityShift}
	ip := f.Data[ethLen:]
	ipLen := p.headers - ethLen - udpLen
	stack.PutLengths(ip[:p.headers-ethLen], s.end-s.start-p.headers)
	if p.v4 {
		h := header.IPv4(ip[:ipv4Len])
		h.SetChecksum(^h.CalculateChecksum())
	}
	// A single datagram has no UDP checksum, over IPv6 too (RFC 6935), as in Linux's rxe: the ICRC
	// covers more. A superframe has one, because Linux requires it.
	if s.segments > 1 {
		f.Segmentation, f.SegmentSize, f.HeaderLen = link.UDP, uint16(s.size), uint16(p.headers)
		f.NeedsChecksum, f.ChecksumStart, f.ChecksumOffset = true, uint16(p.headers-udpLen), 6
		udp := header.UDP(ip[ipLen:])
		udp.SetChecksum(checksum.Combine(p.pseudo, udp.Length()))
	}
	if s.reservation.Data != nil {
		f.HeaderLen, f.NoICRC = uint16(p.headers), true
		var c counts
		c.frame(&f, segmentsOf(&f), p.headers, false)
		s.tally.add(&c)
		s.commit(&f, len(f.Data))
		return
	}
	if nb := p.nb; nb != nil {
		mac := nb.lookup()
		if mac == 0 {
			mac = nb.hold(&f)
		}
		if mac == 0 {
			s.end = s.start
			return
		}
		putMAC(f.Data, mac)
	}
	s.frames = append(s.frames, f)
}

// emit writes the finished frames and empties the buffer.
func (s *sender) emit() {
	s.tally.write(s.out, s.frames, s.raw)
	s.frames = s.frames[:0]
	s.start, s.end = 0, 0
}

// Flush implements Sender.
func (s *sender) Flush() {
	s.finish()
	s.emit()
	s.port, s.tally, s.raw, s.out, s.ids.path, s.whole = nil, nil, false, nil, nil, 0
	senders.Put(s)
}

// segmentsOf returns the number of packets of a frame on the wire.
func segmentsOf(f *link.Frame) int {
	if f.Segmentation == link.NoSegmentation {
		return 1
	}
	return (len(f.Data) - int(f.HeaderLen) + int(f.SegmentSize) - 1) / int(f.SegmentSize)
}

// write writes frames to out and counts them. Frames that out refuses are skipped and counted as
// errors. Frames of a FrameSender are raw, and are not counted as sent.
func (t *tally) write(out link.Link, frames []link.Frame, raw bool) {
	if len(frames) == 0 {
		return
	}
	var c counts
	_, looped := out.(*pipe.Port)
	for len(frames) > 0 {
		n, err := out.Write(frames)
		for i := 0; i < n && !raw; i++ {
			f := &frames[i]
			c.frame(f, segmentsOf(f), int(f.HeaderLen), looped)
		}
		frames = frames[n:]
		if err == nil && n > 0 {
			continue
		}
		if len(frames) > 0 {
			frames = frames[1:]
		}
		c.bad++
	}
	t.add(&c)
}
