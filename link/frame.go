package link

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/softrnic/softrnic/link/checksum"
)

// EthernetHeaderLen is the length of the Ethernet header of an untagged frame, in bytes:
// destination, source and type.
const EthernetHeaderLen = 14

// MinMTU is the smallest MTU that a medium of this module accepts, in bytes: IPv6's minimum (RFC
// 8200 §5). A RoCE path MTU of 1024 needs an MTU of 1500, one of 4096 about 4200.
const MinMTU = 1280

// ErrTooLong is wrapped by Write's error for a frame that exceeds the link's MTU or offloads.
var ErrTooLong = errors.New("frame too long")

// Validate returns an error if a link with this MTU and these offloads cannot send f. Data must
// hold at least the Ethernet header. For a superframe or a frame with a partial checksum it must
// hold all headers.
func (f *Frame) Validate(mtu int, o Offloads) error {
	if len(f.Data) < EthernetHeaderLen {
		return fmt.Errorf("frame starts with a piece of %d bytes, shorter than the Ethernet header of %d", len(f.Data), EthernetHeaderLen)
	}
	packet := f.Len() - NetworkOffset(f.Data)
	if f.NeedsChecksum {
		at := int(f.ChecksumStart) + int(f.ChecksumOffset)
		if !o.Checksum {
			return errors.New("frame has a partial checksum, which this link does not complete: fill it in")
		}
		if f.ChecksumStart < EthernetHeaderLen || at+2 > len(f.Data) {
			return fmt.Errorf("frame of %d bytes has a partial checksum at %d+%d, outside its first %d bytes",
				f.Len(), f.ChecksumStart, f.ChecksumOffset, len(f.Data))
		}
	}
	if f.Segmentation == NoSegmentation {
		if packet > mtu {
			return fmt.Errorf("packet of %d bytes, MTU %d: %w", packet, mtu, ErrTooLong)
		}
		return nil
	}
	return f.validateSuperframe(packet, mtu, o)
}

// validateSuperframe is Validate for a superframe. packet is the length of its IP packet.
func (f *Frame) validateSuperframe(packet, mtu int, o Offloads) error {
	can := o.TSO
	if f.Segmentation == UDP {
		can = o.USO
	}
	if !can || f.Segmentation > UDP {
		return fmt.Errorf("superframe of kind %d, which this link does not take: send single packets", f.Segmentation)
	}
	h, size := int(f.HeaderLen), int(f.SegmentSize)
	headers := h - NetworkOffset(f.Data) // of IP and transport
	if !f.NeedsChecksum || size == 0 || headers < 20+8 || h > len(f.Data) {
		return fmt.Errorf("superframe with header of %d in %d bytes, segments of %d, partial checksum %t: "+
			"need a whole header, a size and a partial checksum",
			h, len(f.Data), size, f.NeedsChecksum)
	}
	if packet > MaxSuperframe {
		return fmt.Errorf("superframe of %d bytes, at most %d: %w", packet, MaxSuperframe, ErrTooLong)
	}
	if headers+size > mtu && packet > mtu {
		return fmt.Errorf("superframe of packets of %d bytes, MTU %d: %w", headers+size, mtu, ErrTooLong)
	}
	if payload := packet - headers; f.Segmentation == UDP && payload > MaxSegments*size {
		return fmt.Errorf("superframe of %d segments, at most %d: %w", (payload+size-1)/size, MaxSegments, ErrTooLong)
	}
	return nil
}

// FinishChecksum completes a partial checksum in place, if it lies within the frame. More must be
// empty.
func (f *Frame) FinishChecksum() {
	if !f.NeedsChecksum {
		return
	}
	f.NeedsChecksum, f.ChecksumValid = false, true
	start := int(f.ChecksumStart)
	at := start + int(f.ChecksumOffset)
	if at+2 > len(f.Data) {
		return
	}
	sum := ^checksum.Sum(f.Data[start:], 0)
	if sum == 0 {
		sum = 0xffff // in UDP 0 means no checksum (RFC 768); TCP treats both alike
	}
	binary.BigEndian.PutUint16(f.Data[at:], sum)
}
