package nvme

const sglLen = 16

// SGLType is the type of an SGL descriptor (NVMe 1.4 §4.4).
type SGLType uint8

const (
	SGLData        SGLType = 0x0
	SGLBitBucket   SGLType = 0x1
	SGLSegment     SGLType = 0x2
	SGLLastSegment SGLType = 0x3
	SGLKeyedData   SGLType = 0x4
)

// SGLSubtype is the meaning of the address in an SGL descriptor.
type SGLSubtype uint8

const (
	SGLAddress    SGLSubtype = 0x0 // of memory
	SGLOffset     SGLSubtype = 0x1 // in the command capsule, from the end of the command on
	SGLInvalidate SGLSubtype = 0xf // of memory, whose key the response's SEND invalidates
)

// SGL is an SGL descriptor (NVMe 1.4 §4.4, NVMe-oF 1.1 §2.3). A command in fabrics has one, for its
// data:
//
//	byte  0..7      8..10      11..14   15
//	    address |   length   |  key  | type, subtype    of type SGLKeyedData
//	    address |   length (8..11)   | type, subtype    of other types
type SGL struct {
	Addr    uint64 // or an offset
	Length  uint32 // bytes; 24 bits if keyed
	Key     uint32 // the rkey or STag; 0 unless keyed
	Type    SGLType
	Subtype SGLSubtype
}

// MaxKeyedLength is the largest length in a keyed SGL descriptor, bytes.
const MaxKeyedLength = 1<<24 - 1

// InCapsule returns the descriptor of data in the command capsule.
func InCapsule(length uint32) SGL {
	return SGL{Length: length, Type: SGLData, Subtype: SGLOffset}
}

// Keyed returns the descriptor of host memory, of at most MaxKeyedLength bytes. With invalidate,
// the controller invalidates the key when it responds.
func Keyed(addr uint64, length, key uint32, invalidate bool) SGL {
	s := SGL{Addr: addr, Length: length, Key: key, Type: SGLKeyedData}
	if invalidate {
		s.Subtype = SGLInvalidate
	}
	return s
}

func parseSGL(b *[sglLen]byte) SGL {
	s := SGL{Addr: le.Uint64(b[:]), Length: le.Uint32(b[8:]), Type: SGLType(b[15] >> 4), Subtype: SGLSubtype(b[15] & 0xf)}
	if s.Type == SGLKeyedData {
		s.Length &= MaxKeyedLength
		s.Key = le.Uint32(b[11:])
	}
	return s
}

func (s *SGL) append(b []byte) []byte {
	b = le.AppendUint64(b, s.Addr)
	if s.Type == SGLKeyedData {
		b = append(b, byte(s.Length), byte(s.Length>>8), byte(s.Length>>16))
		b = le.AppendUint32(b, s.Key)
	} else {
		b = le.AppendUint32(b, s.Length)
		b = append(b, 0, 0, 0)
	}
	return append(b, byte(s.Type)<<4|byte(s.Subtype)&0xf)
}
