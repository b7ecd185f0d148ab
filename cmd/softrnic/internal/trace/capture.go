package trace

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

const (
	// maxRecord is the longest packet of a capture in bytes. A frame of a link has at most 64 KiB
	// plus headers.
	maxRecord = 1 << 18
	// maxBetween is the most bytes of a capture between two packets.
	maxBetween = 1 << 24
	// readAhead is the read size of a file in bytes.
	readAhead = 1 << 20
)

// source is a source of packets. The bytes are valid until the next call.
type source interface {
	next() (data []byte, info gopacket.CaptureInfo, link layers.LinkType, err error)
}

// lossy is a source that knows how many packets the capture lacks.
type lossy interface {
	dropped() int // since the last call
	why() string  // format of a text with that number
}

// A leash is a reader with a limit that can be raised. It bounds the bytes that a record's header
// can make pcapgo read and keep.
type leash struct {
	r    io.Reader
	left int
}

var errRecord = fmt.Errorf("more than %d bytes without a packet", maxBetween)

func (l *leash) Read(b []byte) (int, error) {
	if l.left <= 0 {
		return 0, errRecord
	}
	n, err := l.r.Read(b[:min(len(b), l.left)])
	l.left -= n
	return n, err
}

// open reads the beginning of a capture. It is pcapng if it starts with a section header block, and
// else pcap. Either may be compressed by gzip.
func open(r io.Reader) (source, error) {
	l := &leash{r, maxBetween}
	b := bufio.NewReaderSize(l, readAhead)
	magic, err := b.Peek(4)
	if err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, zerr := gzip.NewReader(bufio.NewReader(unleashed{b, r}))
		if zerr != nil {
			return nil, zerr
		}
		l = &leash{z, maxBetween}
		b = bufio.NewReaderSize(l, readAhead)
		magic, err = b.Peek(4)
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("shorter than the header of a capture")
		}
		return nil, err
	}
	if binary.BigEndian.Uint32(magic) != 0x0a0d0d0a {
		p, err := pcapgo.NewReader(b)
		if err != nil {
			return nil, err
		}
		p.SetSnaplen(maxRecord) // some writers exceed the length or give 0
		return &pcapSource{p, l}, nil
	}
	return newNgSource(b, l)
}

// unleashed reads the buffered bytes, and then the rest without a leash. Compressed data is limited
// after decompression.
type unleashed struct {
	buffered *bufio.Reader
	rest     io.Reader
}

func (r unleashed) Read(b []byte) (int, error) {
	if n := r.buffered.Buffered(); n > 0 {
		return r.buffered.Read(b[:min(n, len(b))])
	}
	return r.rest.Read(b)
}

type pcapSource struct {
	r *pcapgo.Reader
	l *leash
}

func (s *pcapSource) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	data, info, err := s.r.ZeroCopyReadPacketData()
	s.l.left = maxBetween
	// The upper bits of the field describe the frame check sequence.
	return data, info, s.r.LinkType() & 0xffff, err
}
