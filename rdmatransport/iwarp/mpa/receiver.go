package mpa

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/crc"
)

// Handler is what a [Receiver] calls with the ULPDUs that it finds.
type Handler interface {
	// ULPDU is called with each ULPDU in turn, as a whole, after its FPDU was checked. b belongs to
	// the Receiver again when ULPDU returns. ULPDU must not call the Receiver. After an error the
	// Receiver hands over nothing more.
	ULPDU(b []byte) error
}

// Receiver finds ULPDUs in the bytes of a stream. Only one goroutine may use it at a time.
type Receiver struct {
	Config
	pos position // of the next FPDU
	buf []byte   // the start of an FPDU whose rest has not come
	err error
}

// NewReceiver returns a Receiver for a stream on which the request and the reply have been
// exchanged.
func NewReceiver(c Config) Receiver { return Receiver{Config: c} }

// Feed takes the next bytes of the stream, however it is cut, and calls h for each ULPDU that is
// complete. A ULPDU that is whole in b, with no marker in it, is not copied. The error is h's, or
// ErrCRC or ErrMarker; after an error the Receiver takes nothing more and returns the same error
// each time (RFC 5044 §8).
//
// The Receiver holds no more than what the peer has sent of one FPDU, which is less than 67 KB.
func (r *Receiver) Feed(b []byte, h Handler) error {
	for r.err == nil && len(b) > 0 {
		if len(r.buf) == 0 {
			l, known := r.find(b)
			if !known || l.size > len(b) {
				r.keep(b, l.size)
				break
			}
			r.err = r.take(b[:l.size], l, h)
			b = b[l.size:]
			continue
		}
		b = r.gather(b, h)
	}
	return r.err
}

// gather adds the first bytes of b to the FPDU whose start is kept, and returns the rest of b.
func (r *Receiver) gather(b []byte, h Handler) []byte {
	l, known := r.find(r.buf)
	if !known { // two bytes of length are missing, or some of them and of a marker
		n := min(r.layout(r.pos, 0).start+lengthLen-len(r.buf), len(b))
		r.keep(b[:n], 0)
		return b[n:]
	}
	n := min(l.size-len(r.buf), len(b))
	r.keep(b[:n], l.size)
	if len(r.buf) == l.size {
		fpdu := r.buf
		r.buf = r.buf[:0]
		r.err = r.take(fpdu, l, h)
	}
	return b[n:]
}

// find is the layout of the FPDU that starts b; not ok if the bytes of its length have not all
// come.
func (r *Receiver) find(b []byte) (l layout, known bool) {
	at := r.layout(r.pos, 0).start
	if len(b) < at+lengthLen {
		return l, false
	}
	return r.layout(r.pos, int(binary.BigEndian.Uint16(b[at:]))), true
}

// keep appends b to what is kept of an FPDU of size bytes, if that is known. Memory grows with what
// has come, not with what the length field claims.
func (r *Receiver) keep(b []byte, size int) {
	if need := len(r.buf) + len(b); need > cap(r.buf) {
		buf := make([]byte, len(r.buf), max(need, min(size, 2*need)))
		copy(buf, r.buf)
		r.buf = buf
	}
	r.buf = append(r.buf, b...)
}

// take checks one FPDU and hands its ULPDU over. The CRC is checked first, as what follows relies
// on the bytes.
func (r *Receiver) take(fpdu []byte, l layout, h Handler) error {
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
	r.pos = r.pos.behind(l)
	start := l.start + lengthLen
	if next := l.nextMarker(); next < start+n && next < l.size {
		return h.ULPDU(r.squeeze(fpdu[start:l.size-crcLen], next-start, n))
	}
	return h.ULPDU(fpdu[start : start+n : start+n])
}

// squeeze returns the first n bytes of body without its markers, the first of which is at next, in
// the Receiver's own memory; body may lie there too.
func (r *Receiver) squeeze(body []byte, next, n int) []byte {
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

// Pending is how many bytes of an incomplete FPDU are kept.
func (r *Receiver) Pending() int { return len(r.buf) }

// Held is how many bytes of memory the Receiver holds, used or not.
func (r *Receiver) Held() int { return cap(r.buf) }

// Release frees the memory that the Receiver keeps for the next FPDU, unless there are bytes in it.
func (r *Receiver) Release() {
	if len(r.buf) == 0 {
		r.buf = nil
	}
}
