//go:build linux

package vnet

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
)

// HeaderLen is the size of struct virtio_net_hdr: flags and gso_type of one byte each, then
// hdr_len, gso_size, csum_start and csum_offset of two bytes each in the machine's byte order.
const HeaderLen = 10

func encode(h *[HeaderLen]byte, f *link.Frame) {
	*h = [HeaderLen]byte{}
	if f.NeedsChecksum {
		h[0] = unix.VIRTIO_NET_HDR_F_NEEDS_CSUM
		binary.NativeEndian.PutUint16(h[6:], f.ChecksumStart)
		binary.NativeEndian.PutUint16(h[8:], f.ChecksumOffset)
	}
	switch f.Segmentation {
	case link.NoSegmentation:
		return
	case link.TCPv4:
		h[1] = unix.VIRTIO_NET_HDR_GSO_TCPV4
	case link.TCPv6:
		h[1] = unix.VIRTIO_NET_HDR_GSO_TCPV6
	case link.UDP:
		h[1] = unix.VIRTIO_NET_HDR_GSO_UDP_L4
	}
	binary.NativeEndian.PutUint16(h[2:], f.HeaderLen)
	binary.NativeEndian.PutUint16(h[4:], f.SegmentSize)
}

// decode describes the frame in b, which was read from a queue. It returns false if b cannot be a
// frame.
func (c *Conn) decode(b []byte, f *link.Frame) bool {
	if !c.bare {
		return decode(b, f)
	}
	*f = link.Frame{Data: b}
	return len(b) >= link.EthernetHeaderLen
}

// decode describes the frame in b, after its virtio-net header. It returns false if b cannot be a
// frame.
func decode(b []byte, f *link.Frame) bool {
	if len(b) < HeaderLen+link.EthernetHeaderLen {
		return false
	}
	h, data := b[:HeaderLen], b[HeaderLen:]
	*f = link.Frame{Data: data, ChecksumValid: h[0]&unix.VIRTIO_NET_HDR_F_DATA_VALID != 0}
	if h[0]&unix.VIRTIO_NET_HDR_F_NEEDS_CSUM != 0 {
		f.NeedsChecksum = true
		f.ChecksumStart = binary.NativeEndian.Uint16(h[6:])
		f.ChecksumOffset = binary.NativeEndian.Uint16(h[8:])
		if f.ChecksumStart < link.EthernetHeaderLen || int(f.ChecksumStart)+int(f.ChecksumOffset)+2 > len(data) {
			return false
		}
	}
	switch h[1] &^ unix.VIRTIO_NET_HDR_GSO_ECN {
	case unix.VIRTIO_NET_HDR_GSO_TCPV4:
		f.Segmentation = link.TCPv4
	case unix.VIRTIO_NET_HDR_GSO_TCPV6:
		f.Segmentation = link.TCPv6
	case unix.VIRTIO_NET_HDR_GSO_UDP_L4:
		f.Segmentation = link.UDP
	default:
		return true
	}
	f.SegmentSize = binary.NativeEndian.Uint16(h[4:])
	f.HeaderLen = headerLen(f)
	if f.SegmentSize == 0 || f.HeaderLen == 0 {
		f.Segmentation = link.NoSegmentation
	}
	return true
}

// headerLen finds the end of the transport header, because hdr_len is only a hint. The kernel
// leaves the checksum of a superframe partial, so ChecksumStart is the start of the transport
// header. 0 means unknown.
func headerLen(f *link.Frame) uint16 {
	if !f.NeedsChecksum {
		return 0
	}
	n := int(f.ChecksumStart) + 8
	if f.Segmentation != link.UDP {
		if int(f.ChecksumStart)+13 > len(f.Data) {
			return 0
		}
		n = int(f.Data[f.ChecksumStart+12]>>4) * 4
		if n < 20 {
			return 0
		}
		n += int(f.ChecksumStart)
	}
	if n > len(f.Data) {
		return 0
	}
	return uint16(n)
}
