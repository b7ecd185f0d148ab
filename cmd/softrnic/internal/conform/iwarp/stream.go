package iwarp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net"
	"sync"
	"time"

	"github.com/softrnic/softrnic/stack"
)

// Lengths of MPA's fields in bytes, and the distance of markers in the stream (RFC 5044 §4).
const (
	lengthLen = 2
	crcLen    = 4
	markerLen = 4
	interval  = 512
	frameLen  = 20 // of a request or reply without private data
)

// castagnoli is made when it is first needed: that takes longer than the initialization of most
// packages.
var castagnoli = sync.OnceValue(func() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) })

// direction is the framing of FPDUs in one direction of the stream.
type direction struct {
	markers bool
	pos     int // bytes since the first FPDU, markers included
}

// marker reports whether a marker is due at the current position.
func (d *direction) marker() bool { return d.markers && d.pos%interval == 0 }

// framing is an FPDU with optional errors.
type framing struct {
	ulpdu   []byte
	length  int    // value of the length field if it differs from that of ulpdu
	pad     byte   // value of the pad bytes
	crc     uint32 // xored to the CRC
	zeroCRC bool
	pointer uint16 // xored to FPDUPTR of the first marker
	reserve uint16 // of the markers' reserved field
}

// encode returns the FPDU encoded for the current position in the stream.
func (d *direction) encode(f framing) []byte {
	n := len(f.ulpdu)
	if f.length != 0 {
		n = f.length
	}
	body := binary.BigEndian.AppendUint16(nil, uint16(n))
	body = append(body, f.ulpdu...)
	for len(body)%4 != 0 {
		body = append(body, f.pad)
	}
	var out []byte
	start := -1
	emit := func(b []byte) {
		for _, x := range b {
			if d.marker() {
				pointer := 0
				if start >= 0 {
					pointer = len(out) - start
				}
				out = binary.BigEndian.AppendUint16(out, f.reserve)
				out = binary.BigEndian.AppendUint16(out, uint16(pointer)^f.pointer)
				f.pointer = 0
				d.pos += markerLen
			}
			if start < 0 {
				start = len(out)
			}
			out = append(out, x)
			d.pos++
		}
	}
	emit(body)
	if d.marker() { // the CRC covers a marker in front of it
		out = binary.BigEndian.AppendUint32(out, uint32(len(out)-start))
		d.pos += markerLen
	}
	crc := crc32.Checksum(out, castagnoli()) ^ f.crc
	if f.zeroCRC {
		crc = 0
	}
	out = binary.LittleEndian.AppendUint32(out, crc)
	d.pos += crcLen
	return out
}

// fpdu is an FPDU of the target.
type fpdu struct {
	ulpdu   []byte
	pad     []byte
	crc     bool   // the CRC is right
	crcWord uint32 // as received
	markers bool   // all markers are right
	size    int    // bytes in the stream
	first   bool   // it is the first
}

// reader is the target's direction of a stream.
type reader struct {
	direction
	s       stack.Stream
	pending []byte // read before s; set by a test
}

// errLate is the error if nothing is received in time.
var errLate = errors.New("nothing has come in time")

// read fills b. It fails with io.EOF if the stream has ended or was reset before the first byte,
// and with errLate after a timeout.
func (r *reader) read(b []byte, wait time.Duration) error {
	n := copy(b, r.pending)
	r.pending = r.pending[n:]
	if n == len(b) {
		return nil
	}
	if err := r.s.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return io.EOF
	}
	_, err := io.ReadFull(r.s, b[n:])
	var late net.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &late) && late.Timeout():
		return errLate
	case errors.Is(err, io.ErrUnexpectedEOF):
		return err
	}
	return io.EOF // or reset
}

// next reads an FPDU.
func (r *reader) next(wait time.Duration) (f fpdu, err error) {
	f.markers, f.first = true, r.pos == 0
	var all []byte
	start := -1
	take := func(n int) (part []byte, err error) {
		for n > 0 {
			if r.marker() {
				var m [markerLen]byte
				if err := r.read(m[:], wait); err != nil {
					return nil, err
				}
				pointer := 0
				if start >= 0 {
					pointer = len(all) - start
				}
				f.markers = f.markers && int(binary.BigEndian.Uint32(m[:])) == pointer
				all = append(all, m[:]...)
				r.pos += markerLen
			}
			if start < 0 {
				start = len(all)
			}
			run := n
			if r.markers {
				run = min(n, interval-r.pos%interval)
			}
			b := make([]byte, run)
			if err := r.read(b, wait); err != nil {
				return nil, err
			}
			all, part = append(all, b...), append(part, b...)
			r.pos, n = r.pos+run, n-run
		}
		return part, nil
	}
	head, err := take(lengthLen)
	if err != nil {
		return f, err
	}
	n := int(binary.BigEndian.Uint16(head))
	body, err := take((lengthLen+n+3)&^3 - lengthLen)
	if err != nil {
		return f, err
	}
	f.ulpdu, f.pad = body[:n], body[n:]
	crc, err := take(crcLen)
	if err != nil {
		return f, err
	}
	f.crcWord = binary.LittleEndian.Uint32(crc)
	f.size = len(all)
	f.crc = crc32.Checksum(all[:len(all)-crcLen], castagnoli()) == f.crcWord
	return f, nil
}

// wait waits until the stream is readable.
func (r *reader) wait(wait time.Duration) error {
	if len(r.pending) > 0 {
		return nil
	}
	var b [1]byte
	err := r.read(b[:], wait)
	if err == nil {
		r.pending = b[:]
	}
	return err
}

// frame reads a request or a reply.
func (r *reader) frame(wait time.Duration) ([]byte, error) {
	b := make([]byte, frameLen)
	if err := r.read(b, wait); err != nil {
		return nil, err
	}
	private := make([]byte, binary.BigEndian.Uint16(b[18:]))
	if err := r.read(private, wait); err != nil {
		return nil, err
	}
	return bytes.Join([][]byte{b, private}, nil), nil
}
