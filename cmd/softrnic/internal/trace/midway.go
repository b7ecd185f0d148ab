package trace

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// A capture may begin within a TCP connection, or miss a part of it. FPDUs are then found by their
// form: a length, a header of DDP and RDMAP that fits, and a right CRC. Without a CRC, several must
// follow each other. From there on the stream is followed. Streams with MPA's markers are not
// found. TLS is found by a record at the beginning of a segment, or by two that follow each other.
// The search goes on, as FPDUs may carry them.

const (
	// maxSearched is the most bytes of a direction that are searched for an FPDU.
	maxSearched = 1 << 20
	// maxCandidates is the most places of a direction whose FPDU is not complete yet, and of those
	// where a record of TLS must follow.
	maxCandidates = 16
	// maxChecks is how often the search may compute the CRC of each byte of a direction, on average.
	maxChecks = 64
	// withoutCRC is how many FPDUs must follow each other if the first has no right CRC.
	withoutCRC = 4
)

// search is the state of the search for an FPDU in a direction.
type search struct {
	b          []byte      // bytes from the first candidate on
	from       int         // of b: where the search goes on
	candidates []candidate // whose FPDU is not complete
	records    []int       // from the beginning of the search: where what may be records of TLS ends
	searched   int         // bytes before b
}

// candidate is a place where an FPDU may begin.
type candidate struct {
	at    int  // in b
	wrong bool // its CRC is wrong
}

// least is how many bytes show whether an FPDU may begin: its length, and the longer header.
const least = 2 + ddp.UntaggedLen

// fpduLen returns the number of bytes of the FPDU that may begin b, which has least bytes, or 0.
func fpduLen(b []byte) int {
	n, headers, control, reserved := int(binary.BigEndian.Uint16(b)), ddp.UntaggedLen, uint8(0), uint8(0)
	var queue uint32
	var err error
	tagged := ddp.IsTagged(b[2:])
	if tagged {
		var h ddp.Tagged
		h, _, err = ddp.ParseTagged(b[2:])
		headers, control, reserved = ddp.TaggedLen, h.RsvdULP, h.Reserved
	} else {
		var h ddp.Untagged
		h, _, err = ddp.ParseUntagged(b[2:])
		control, reserved, queue = h.RsvdULP, h.Reserved, h.QN
	}
	if err != nil || reserved != 0 || n < headers {
		return 0
	}
	op, err := rdmap.ParseControl(control)
	if err == nil && tagged {
		err = op.CheckTagged()
	} else if err == nil {
		err = op.CheckUntagged(queue)
	}
	if err != nil {
		return 0
	}
	return (2+n+3)&^3 + 4
}

// fpduCount counts FPDUs.
type fpduCount int

func (c *fpduCount) ULPDU([]byte) error { *c++; return nil }

// isFPDU reports whether an FPDU begins at c, and whether it has a CRC. complete is false if more
// bytes are needed to know.
func (h *half) isFPDU(c *candidate) (is, crc, complete bool) {
	b := h.search.b[c.at:]
	if len(b) < least {
		return false, false, false
	}
	n := fpduLen(b)
	if n == 0 {
		return false, false, true
	}
	if n > len(b) {
		return false, false, false
	}
	if !c.wrong {
		r, found := mpa.NewReceiver(mpa.Config{CRC: true}), fpduCount(0)
		h.checked += uint64(n)
		if r.Feed(b[:n], &found) == nil && found == 1 {
			return true, true, true
		}
		c.wrong = true
	}
	for range withoutCRC {
		if len(b) < least {
			return false, false, false
		}
		if n = fpduLen(b); n == 0 {
			return false, false, true
		}
		b = b[min(n, len(b)):]
	}
	return true, false, true
}

// midwayBytes searches a direction whose beginning, or a part of which, is not in the capture.
func (a *analysis) midwayBytes(s *stream, side int, b []byte) {
	h := &s.half[side]
	q := &h.search
	if len(q.b) == 0 && h.stats.Bytes == uint64(len(b)) && len(b) >= len(requestKey) &&
		(bytes.HasPrefix(b, requestKey) || bytes.HasPrefix(b, replyKey)) { // only the SYN is missing
		h.phase = awaitsFrame
		a.startUp(s, side, b)
		return
	}
	if q.searched+len(q.b) > maxSearched || a.buffered+len(b) > maxBuffered {
		a.endSearch(h)
		return
	}
	if isTLS(b) {
		a.encrypted(s)
	}
	q.b = append(q.b, b...)
	a.buffered += len(b)
	for i := 0; i < len(q.candidates); i++ {
		is, crc, complete := h.isFPDU(&q.candidates[i])
		if is {
			a.found(s, side, q.candidates[i].at, crc)
			return
		}
		if complete {
			q.candidates = append(q.candidates[:i], q.candidates[i+1:]...)
			i--
		}
	}
	for ; q.from+least <= len(q.b) && h.checked <= maxChecks*h.stats.Bytes; q.from++ {
		if !s.iwarp && s.rule == "" && q.isRecord() {
			a.encrypted(s)
		}
		c := candidate{at: q.from}
		is, crc, complete := h.isFPDU(&c)
		if is {
			a.found(s, side, c.at, crc)
			return
		}
		if !complete && len(q.candidates) < maxCandidates {
			q.candidates = append(q.candidates, c)
		}
	}
	if h.checked > maxChecks*h.stats.Bytes {
		a.endSearch(h)
		return
	}
	first := q.from
	if len(q.candidates) > 0 {
		first = q.candidates[0].at
	}
	q.b = append(q.b[:0], q.b[first:]...)
	a.buffered -= first
	q.searched += first
	q.from -= first
	for i := range q.candidates {
		q.candidates[i].at -= first
	}
}

// found follows a direction from an FPDU on.
func (a *analysis) found(s *stream, side, at int, crc bool) {
	h := &s.half[side]
	rest := h.search.b[at:]
	a.endSearch(h)
	a.discard(&h.prefix)
	h.phase, h.receiver = framed, mpa.NewReceiver(mpa.Config{CRC: crc})
	h.rdma = rdma{messages: h.rdma.messages, midway: true}
	if a.becomesIWARP(s) {
		a.report(note, nil, a.ev.number, "iWARP, which is followed from here on: the connection's beginning is not in the capture")
	} else {
		a.report(note, nil, a.ev.number, "what is after the missing bytes is followed from here on")
	}
	a.fpdus(s, side, rest)
}

// becomesIWARP notes that a connection is one of iWARP, and reports whether that is new.
func (a *analysis) becomesIWARP(s *stream) bool {
	if s.iwarp {
		return false
	}
	if s.rule == "" {
		a.counts.TCP -= s.segments
	} else {
		a.counts.Left -= s.segments
		a.rules[1].remove(s.rule, s.segments)
	}
	a.counts.IWARP += s.segments
	s.iwarp, s.rule, s.segments = true, "", 0
	return true
}

// endSearch ends the search for an FPDU. The direction is not followed.
func (a *analysis) endSearch(h *half) {
	a.buffered -= len(h.search.b)
	h.search = search{}
	h.phase = unfollowed
}

// isTLS reports whether bytes begin with a record of TLS (RFC 8446 §5.1), and the next one follows
// it if they have that.
func isTLS(b []byte) bool {
	for i := 0; ; i++ {
		if len(b) < recordHeader {
			return i > 0
		}
		n := recordLen(b)
		if n == 0 {
			return false
		}
		b = b[min(n, len(b)):]
	}
}

// recordHeader is the length of the header of a record of TLS.
const recordHeader = 5

// recordLen returns the length of the record of TLS that may begin b, which has a header, or 0.
func recordLen(b []byte) int {
	const first, last, most = 20, 23, 1<<14 + 256
	n := int(binary.BigEndian.Uint16(b[3:]))
	if b[0] < first || b[0] > last || b[1] != 3 || b[2] < 1 || b[2] > 3 || n > most {
		return 0
	}
	return recordHeader + n
}

// isRecord reports whether a record of TLS is where the search goes on, and another ends there.
func (q *search) isRecord() bool {
	at := q.searched + q.from
	n := recordLen(q.b[q.from:])
	if slices.Contains(q.records, at) && n > 0 {
		return true
	}
	q.records = slices.DeleteFunc(q.records, func(next int) bool { return next <= at })
	if n > 0 && len(q.records) < maxCandidates {
		q.records = append(q.records, at+n)
	}
	return false
}

// https is the port of connections that no iWARP is behind.
const https = 443

// encrypted notes that a connection is encrypted by TLS.
func (a *analysis) encrypted(s *stream) {
	if s.iwarp || s.rule != "" || s.low.Port() == https || s.high.Port() == https {
		return
	}
	s.rule = "TLS, which may carry iWARP"
	a.counts.TCP -= s.segments
	a.counts.Left += s.segments
	for range s.segments {
		a.rules[1].add(s.rule)
	}
}
