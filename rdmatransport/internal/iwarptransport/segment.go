package iwarptransport

// DDP segments to be sent, their FPDUs, and their numbers.

import (
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// segment is one DDP segment to be sent, or a run: consecutive segments of one message, which a
// piece of the stream has room for. A run is encoded in one pass, directly into the piece.
type segment struct {
	header [ddp.MaxLen + rdmap.AtomicRequestLen]byte // DDP header, followed by RDMAP's
	n      uint8                                     // bytes of header
	// More segments of its request or response follow.
	more     bool
	mayFault bool     // reading the payload may fault
	faulted  bool     // it has faulted
	step     uint16   // a run: bytes of payload of each segment but the last; 0 for a single segment
	length   uint32   // bytes of payload
	payload  [][]byte // in user memory
}

// tagged begins a tagged segment without a payload.
func (s *segment) tagged(h *ddp.Tagged) {
	h.Encode(s.header[:])
	s.begin(ddp.TaggedLen, !h.Last)
}

// untagged begins an untagged segment without a payload.
func (s *segment) untagged(h *ddp.Untagged) {
	h.Encode(s.header[:])
	s.begin(ddp.UntaggedLen, !h.Last)
}

// empty makes a segment of zero bytes, without a header.
func (s *segment) empty() {
	s.begin(0, false)
}

// begin begins a segment with n bytes of header and no payload.
func (s *segment) begin(n int, more bool) {
	s.n, s.payload, s.length, s.more = uint8(n), s.payload[:0], 0, more
	s.mayFault, s.faulted, s.step = false, false, 0
}

// run makes the segment a run if step is not 0. It then has no RDMAP header, and the L bit of its
// header is that of its last segment.
func (s *segment) run(step int) { s.step = uint16(step) }

// fillsPiece reports whether this is a run that ends because the next segment of its message does
// not fit into the piece.
func (s *segment) fillsPiece() bool { return s.step > 0 && !s.isLast() }

// isLast reports whether the message ends with the segment.
func (s *segment) isLast() bool {
	if ddp.IsTagged(s.header[:]) {
		h, _, _ := ddp.ParseTagged(s.header[:])
		return h.Last
	}
	h, _, _ := ddp.ParseUntagged(s.header[:])
	return h.Last
}

// beforeImmediate records that immediate data follows the segment.
func (s *segment) beforeImmediate() { s.more = true }

// rdmapHeader adds n bytes of RDMAP header, for the caller to fill.
func (s *segment) rdmapHeader(n int) []byte {
	h := s.header[s.n : int(s.n)+n]
	s.n += uint8(n)
	return h
}

// add adds b to the payload.
func (s *segment) add(b []byte, mayFault bool) {
	s.payload = append(s.payload, b)
	s.length += uint32(len(b))
	s.mayFault = mayFault
}

// gather adds n bytes of a message, from offset off on, to the payload. The message is a
// scatter/gather list in the memory of a PD.
func (s *segment) gather(regions *memory.Regions, pd *verbs.PD, list []verbs.SGE, off uint64, n int) (status verbs.WCStatus) {
	s.length += uint32(n)
	s.payload, s.mayFault, status = regions.Pieces(s.payload, uint64(n), pd, list, off)
	return status
}

// onFault records that the payload's memory has faulted.
func (s *segment) onFault() { s.faulted = true }

// ulpdu returns the length in bytes of the segment, or of a run with one header.
func (s *segment) ulpdu() int { return int(s.n) + int(s.length) }

// size returns the length of the segment's FPDU in bytes, or of all FPDUs of a run. Runs have no
// markers.
func (s *segment) size(f *mpa.Sender) int {
	if s.step == 0 {
		return f.Size(s.ulpdu())
	}
	full := (int(s.length) - 1) / int(s.step)
	return full*f.Size(int(s.n)+int(s.step)) + f.Size(s.ulpdu()-full*int(s.step))
}

// release drops the references to user memory.
func (s *segment) release() { clear(s.payload) }

// encodeFPDU writes the segment's FPDU, or those of a run, into b, which is memory of the stream or
// of the output. It copies user memory once, and computes MPA's CRC over the copy. It returns false
// if the memory faults. It may then be called again.
func (s *segment) encodeFPDU(f *mpa.Sender, b []byte) bool {
	if s.mayFault {
		before, header := *f, s.header
		ok := s.encodeGuarded(f, b)
		if !ok {
			*f, s.header = before, header
		}
		return ok
	}
	s.encode(f, b)
	return true
}

func (s *segment) encodeGuarded(f *mpa.Sender, b []byte) (ok bool) {
	defer verbs.EndGuard(verbs.BeginGuard(), &ok, s.payload...)
	s.encode(f, b)
	return true
}

func (s *segment) encode(f *mpa.Sender, b []byte) {
	if s.step > 0 {
		s.encodeRun(f, b)
		return
	}
	f.Begin(b, s.ulpdu())
	f.Add(s.header[:s.n])
	for _, p := range s.payload {
		f.Add(p)
	}
	f.End()
}

func (s *segment) encodeRun(f *mpa.Sender, b []byte) {
	tagged, _, _ := ddp.ParseTagged(s.header[:])
	untagged, _, _ := ddp.ParseUntagged(s.header[:])
	isTagged, isLast := ddp.IsTagged(s.header[:]), s.isLast()
	var rest []byte // of a piece of the payload
	next := 0       // the piece after it
	for left := int(s.length); left > 0; {
		n := min(int(s.step), left)
		left -= n
		if last := isLast && left == 0; isTagged {
			tagged.Last = last
			tagged.Encode(s.header[:])
			tagged.TO += uint64(n)
		} else {
			untagged.Last = last
			untagged.Encode(s.header[:])
			untagged.MO += uint32(n)
		}
		ulpdu := int(s.n) + n
		f.Begin(b, ulpdu)
		f.Add(s.header[:s.n])
		for n > 0 {
			if len(rest) == 0 {
				rest = s.payload[next]
				next++
			}
			some := rest[:min(n, len(rest))]
			f.Add(some)
			rest = rest[len(some):]
			n -= len(some)
		}
		b = b[f.Size(ulpdu):]
		f.End()
	}
}

// messageNumbers holds the last MSN sent on each of DDP's queues (RFC 5041 §4.3).
type messageNumbers struct {
	sent [rdmap.Queues]uint32
}

func (m *messageNumbers) reset() { *m = messageNumbers{} }

// next returns the MSN of a queue's next message.
func (m *messageNumbers) next(queue int) uint32 { return m.sent[queue] + 1 }

// advance counts a message of a queue.
func (m *messageNumbers) advance(queue int) { m.sent[queue]++ }
