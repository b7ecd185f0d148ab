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
	// maxRecord is the longest packet that a capture may have, in bytes. A link's frame has at most 64 KiB and its headers.
	maxRecord = 1 << 18
	// maxBetween is how many bytes of a capture may pass without a packet.
	maxBetween = 1 << 24
	// maxKept is how many interfaces, and how many names of addresses, a pcapng file may have. pcapgo keeps them.
	maxKept = 1 << 12
	// readAhead is how many bytes are read from a file at once.
	readAhead = 1 << 20
)

// source is where packets come from. The bytes are valid until the next call.
type source interface {
	next() (data []byte, info gopacket.CaptureInfo, link layers.LinkType, err error)
}

// A leash is a reader of which only so many bytes may be read until it is lengthened. It bounds what a record's header can make
// pcapgo read and keep.
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

// open reads the beginning of a capture, which is pcapng if it starts with a section header block, or else pcap; either may be
// compressed by gzip.
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
		p.SetSnaplen(maxRecord) // some writers keep to no length, or give 0
		// The upper bits of the field say whether frames have a frame check sequence.
		if link := p.LinkType() & 0xffff; !readable(link) {
			return nil, notReadable(link)
		}
		return &pcapSource{p, l}, nil
	}
	p, err := pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		return nil, err
	}
	return &ngSource{r: p, l: l}, nil
}

// unleashed reads what has been buffered, and then the rest without a leash: what is compressed is measured when it is unpacked.
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

func notReadable(link layers.LinkType) error {
	return fmt.Errorf("link type %v: what can be read is Ethernet, IP (raw), BSD loopback and Linux's cooked captures", link)
}

type pcapSource struct {
	r *pcapgo.Reader
	l *leash
}

func (s *pcapSource) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	data, info, err := s.r.ZeroCopyReadPacketData()
	s.l.left = maxBetween
	return data, info, s.r.LinkType() & 0xffff, err
}

type ngSource struct {
	r *pcapgo.NgReader
	l *leash
}

func (s *ngSource) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	data, info, err := s.r.ZeroCopyReadPacketData()
	s.l.left = maxBetween
	if err != nil {
		return nil, info, 0, err
	}
	if s.r.NInterfaces() > maxKept || s.r.NNames() > maxKept {
		return nil, info, 0, fmt.Errorf("more than %d interfaces or names", maxKept)
	}
	intf, err := s.r.Interface(info.InterfaceIndex)
	if err == nil && !readable(intf.LinkType) {
		err = notReadable(intf.LinkType)
	}
	return data, info, intf.LinkType, err
}
