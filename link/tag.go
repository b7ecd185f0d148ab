package link

import "encoding/binary"

// TagLen is the length of an 802.1Q tag in bytes. The tag stands between the source address and the
// type: the tag protocol identifier 0x8100, then the tag control information (IEEE 802.1Q §9.6).
//
//	 0     2  3  4                         15
//	+-------+--+----------------------------+
//	|  PCP  |DE|          VLAN ID           |
//	+-------+--+----------------------------+
const TagLen = 4

const (
	tagAt    = 12 // offset of the first tag in a frame
	tagType  = 0x8100
	outerTag = 0x88a8 // of a provider bridge (IEEE 802.1ad); another tag follows
)

// Parts of the tag control information: the mask of the VLAN ID, and the shift of the priority
// (PCP).
const (
	VLANMask      = 0xfff
	PriorityShift = 13
)

// Tagged reports whether a frame begins with an 802.1Q or an 802.1ad tag.
func Tagged(frame []byte) bool { return taggedAt(frame, tagAt) }

func taggedAt(b []byte, at int) bool {
	if len(b) < at+TagLen+2 {
		return false
	}
	t := binary.BigEndian.Uint16(b[at:])
	return t == tagType || t == outerTag
}

// NetworkOffset returns the offset of the packet in a frame, in bytes: after the Ethernet header
// and up to two tags.
func NetworkOffset(frame []byte) int {
	at := tagAt
	for at < tagAt+2*TagLen && taggedAt(frame, at) {
		at += TagLen
	}
	return at + 2
}

// TakeTag removes the first tag from a received frame and stores it in TCI, if it is an 802.1Q tag.
// It returns false if there is none.
func (f *Frame) TakeTag() bool {
	b := f.Data
	if !taggedAt(b, tagAt) || b[tagAt] != tagType>>8 {
		return false
	}
	f.TCI = binary.BigEndian.Uint16(b[tagAt+2:])
	copy(b[TagLen:], b[:tagAt])
	f.Data = b[TagLen:]
	f.shift(-TagLen)
	return true
}

// AppendTagged appends the first n bytes of Data to b, with an 802.1Q tag after the addresses. n
// includes at least the addresses.
func (f *Frame) AppendTagged(b []byte, n int, tci uint16) []byte {
	b = append(b, f.Data[:tagAt]...)
	b = append(b, tagType>>8, tagType&0xff, byte(tci>>8), byte(tci))
	return append(b, f.Data[tagAt:n]...)
}

// SetTagged makes b the frame's data. b must begin with the bytes that AppendTagged appended.
func (f *Frame) SetTagged(b []byte) {
	f.Data = b
	f.shift(TagLen)
}

// shift adjusts the offsets that count from the start of Data.
func (f *Frame) shift(n int) {
	if f.NeedsChecksum {
		f.ChecksumStart = uint16(int(f.ChecksumStart) + n)
	}
	if f.Segmentation != NoSegmentation {
		f.HeaderLen = uint16(int(f.HeaderLen) + n)
	}
}
