package mpa

import (
	"encoding/binary"
	"hash/crc32"
)

// Handler takes what a [Receiver] finds.
type Handler interface {
	// ULPDU is called with each ULPDU in turn, whole, its FPDU found good. b is the Receiver's, until ULPDU returns;
	// ULPDU does not call the Receiver. An error ends the Receiver.
	ULPDU(b []byte) error
}

// Receiver finds ULPDUs in the bytes of a stream. It is used by one goroutine at a time.
type Receiver struct {
	Config
	pos int    // of the next FPDU, behind the last marker's place
	buf []byte // the start of an FPDU that is not there yet
	err error
}

// NewReceiver returns a Receiver at the start of full operation.
func NewReceiver(c Config) Receiver { return Receiver{Config: c} }

// Feed takes the next bytes of the stream, cut anywhere, and calls h for each ULPDU that is complete. A ULPDU that lies
// in b without a marker in it is a part of b. The error is h's, or ErrCRC or ErrMarker; then the Receiver takes nothing
// any more and returns the same error each time (RFC 5044 §8).
//
// What a peer can make the Receiver hold is what it sent of one FPDU, less than 67 KB.
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

// gather adds to the FPDU whose start is kept, and returns what of b is not its.
func (r *Receiver) gather(b []byte, h Handler) []byte {
	l, known := r.find(r.buf)
	if !known { // two bytes of length are missing, or some of them and of a marker
		n := min(r.lay(r.pos, 0).start+lengthLen-len(r.buf), len(b))
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

// find lays out the FPDU that starts b, once its length is there.
func (r *Receiver) find(b []byte) (l layout, known bool) {
	at := r.lay(r.pos, 0).start
	if len(b) < at+lengthLen {
		return l, false
	}
	return r.lay(r.pos, int(binary.BigEndian.Uint16(b[at:]))), true
}

// keep appends b to what is kept of an FPDU of size bytes, if that is known. Memory grows with what came, not with what
// the length claims.
func (r *Receiver) keep(b []byte, size int) {
	if need := len(r.buf) + len(b); need > cap(r.buf) {
		buf := make([]byte, len(r.buf), max(need, min(size, 2*need)))
		copy(buf, r.buf)
		r.buf = buf
	}
	r.buf = append(r.buf, b...)
}

// take checks one FPDU and hands over its ULPDU. The CRC is first, for what follows believes the bytes.
func (r *Receiver) take(fpdu []byte, l layout, h Handler) error {
	if r.CRC && crc32.Checksum(fpdu[:l.size-crcLen], castagnoli) != binary.LittleEndian.Uint32(fpdu[l.size-crcLen:]) {
		return ErrCRC
	}
	for at := l.first; at < l.size; at += interval {
		// The two low bits count as zero (RFC 5044 §4.2).
		if pointer := int(binary.BigEndian.Uint16(fpdu[at+2:]) &^ 3); pointer != max(at-l.start, 0) {
			return ErrMarker
		}
	}
	n := int(binary.BigEndian.Uint16(fpdu[l.start:]))
	r.pos = (r.pos + l.size) % interval
	start := l.start + lengthLen
	if next := l.nextMarker(); next < start+n && next < l.size {
		return h.ULPDU(r.squeeze(fpdu[start:l.size-crcLen], next-start, n))
	}
	return h.ULPDU(fpdu[start : start+n : start+n])
}

// squeeze returns the first n bytes of body without its markers, the first of which is at next, in the Receiver's own
// memory; body may lie there too.
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

// Pending is how many bytes of an FPDU are kept that is not complete.
func (r *Receiver) Pending() int { return len(r.buf) }

// Held is how many bytes of memory the Receiver holds, Pending or not.
func (r *Receiver) Held() int { return cap(r.buf) }

// Release gives up the memory that the Receiver keeps for the next FPDU, if it holds nothing.
func (r *Receiver) Release() {
	if len(r.buf) == 0 {
		r.buf = nil
	}
}
