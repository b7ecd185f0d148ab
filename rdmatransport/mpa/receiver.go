package mpa

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/internal/crc"
)

// Handler receives the ULPDUs that a [Receiver] finds.
type Handler interface {
	// ULPDU is called for each complete ULPDU in order, after its FPDU was checked. b is valid
	// until ULPDU returns. ULPDU must not call the Receiver. After an error the Receiver delivers
	// nothing more.
	ULPDU(b []byte) error
}

// Receiver finds ULPDUs in the bytes of a stream. It is not safe for concurrent use.
type Receiver struct {
	Config
	pos position // of the next FPDU
	buf []byte   // the start of an incomplete FPDU
	err error
}

// NewReceiver returns a Receiver for a stream after the exchange of request and reply.
func NewReceiver(c Config) Receiver { return Receiver{Config: c} }

// Feed processes the next bytes of the stream, in pieces of any size, and calls h for each complete
// ULPDU. A ULPDU that is complete in b, without a marker in it, is not copied. The error is h's, or
// ErrCRC or ErrMarker. After an error the Receiver accepts nothing more and returns the same error
// each time (RFC 5044 §8).
//
// The Receiver buffers only bytes of one FPDU that the peer has sent, less than 67 KB.
func (r *Receiver) Feed(b []byte, h Handler) error {
	for r.err == nil && len(b) > 0 {
		if len(r.buf) == 0 {
			l, known := r.parseLength(b)
			if !known || l.size > len(b) {
				r.buffer(b, l.size)
				break
			}
			r.err = r.deliver(b[:l.size], l, h)
			b = b[l.size:]
			continue
		}
		b = r.assemble(b, h)
	}
	return r.err
}

// assemble adds the first bytes of b to the buffered start of an FPDU, and returns the rest of b.
func (r *Receiver) assemble(b []byte, h Handler) []byte {
	l, known := r.parseLength(r.buf)
	if !known { // a part of the length, or of a marker and the length, is missing
		n := min(r.layout(r.pos, 0).start+lengthLen-len(r.buf), len(b))
		r.buffer(b[:n], 0)
		return b[n:]
	}
	n := min(l.size-len(r.buf), len(b))
	r.buffer(b[:n], l.size)
	if len(r.buf) == l.size {
		fpdu := r.buf
		r.buf = r.buf[:0]
		r.err = r.deliver(fpdu, l, h)
	}
	return b[n:]
}

// parseLength returns the layout of the FPDU at the start of b. known is false if its length is
// incomplete.
func (r *Receiver) parseLength(b []byte) (l layout, known bool) {
	at := r.layout(r.pos, 0).start
	if len(b) < at+lengthLen {
		return l, false
	}
	return r.layout(r.pos, int(binary.BigEndian.Uint16(b[at:]))), true
}

// buffer appends b to the buffered part of an FPDU of size bytes, if that is known. Memory grows
// with the received bytes, not with the value of the length field.
func (r *Receiver) buffer(b []byte, size int) {
	if need := len(r.buf) + len(b); need > cap(r.buf) {
		buf := make([]byte, len(r.buf), max(need, min(size, 2*need)))
		copy(buf, r.buf)
		r.buf = buf
	}
	r.buf = append(r.buf, b...)
}

// deliver checks one FPDU and passes its ULPDU to h. The CRC is checked first, because the rest
// relies on the bytes.
func (r *Receiver) deliver(fpdu []byte, l layout, h Handler) error {
	if r.CRC && crc.Castagnoli.Update(0, fpdu[:l.size-crcLen]) != binary.LittleEndian.Uint32(fpdu[l.size-crcLen:]) {
		return ErrCRC
	}
	for at := l.first; at < l.size; at += interval {
		// The two low bits count as zero (RFC 5044 §4.2).
		if pointer := int(binary.BigEndian.Uint16(fpdu[at+2:]) &^ 3); pointer != max(at-l.start, 0) {
			return ErrMarker
		}
	}
	n := int(binary.BigEndian.Uint16(fpdu[l.start:]))
	r.pos = r.pos.after(l)
	start := l.start + lengthLen
	if next := l.nextMarker(); next < start+n && next < l.size {
		return h.ULPDU(r.removeMarkers(fpdu[start:l.size-crcLen], next-start, n))
	}
	return h.ULPDU(fpdu[start : start+n : start+n])
}

// removeMarkers returns the first n bytes of body without markers, the first of which is at next,
// in the Receiver's own memory. body may be in that memory too.
func (r *Receiver) removeMarkers(body []byte, next, n int) []byte {
	if cap(r.buf) < n {
		r.buf = make([]byte, 0, n)
	}
	out := r.buf[:n]
	done := 0
	for done < n {
		done += copy(out[done:], body[:next])
		body = body[min(next+markerLen, len(body)):]
		next = min(between, len(body))
	}
	return out
}

// Pending returns the number of buffered bytes of an incomplete FPDU.
func (r *Receiver) Pending() int { return len(r.buf) }

// Held returns the size of the Receiver's buffer in bytes.
func (r *Receiver) Held() int { return cap(r.buf) }

// Release frees the Receiver's buffer, unless there are bytes in it.
func (r *Receiver) Release() {
	if len(r.buf) == 0 {
		r.buf = nil
	}
}
