package iwarptransport

// DDP segments to be sent, their FPDUs, and their numbers.

import (
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// segment is one DDP segment to be sent.
type segment struct {
	header [ddp.MaxLen + rdmap.AtomicRequestLen]byte // DDP header, followed by RDMAP's
	n      uint8                                     // bytes of header
	// More segments of its request or response follow.
	more     bool
	mayFault bool     // reading the payload may fault
	faulted  bool     // it has faulted
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
	s.mayFault, s.faulted = false, false
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

// ulpdu returns the segment's length in bytes.
func (s *segment) ulpdu() int { return int(s.n) + int(s.length) }

// release drops the references to user memory.
func (s *segment) release() { clear(s.payload) }

// encodeFPDU writes the segment's FPDU into b, which is memory of the stream or of the output. It
// copies user memory once, and computes MPA's CRC over the copy. It returns false if the memory
// faults. It may then be called again.
func (s *segment) encodeFPDU(f *mpa.Sender, b []byte) bool {
	if s.mayFault {
		return s.encodeGuarded(f, b)
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
	f.Begin(b, s.ulpdu())
	f.Add(s.header[:s.n])
	for _, p := range s.payload {
		f.Add(p)
	}
	f.End()
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
