// Package wire encodes and parses the packets of RoCE v2: everything between the UDP header and the
// end of the datagram. It is for programs that write or read such packets, such as readers of
// captures, fuzzers and test benches of hardware. The packets of RoCE v1 are the same after its
// GRH.
//
//	+-----+--------------------------------------------+---------+-----+------+
//	| BTH | RETH, AETH, AtomicETH, … as the opcode has  | payload | pad | ICRC |
//	+-----+--------------------------------------------+---------+-----+------+
//
// Fields are big-endian on the wire, and the ICRC is little-endian. In this package they are values
// in host order. A [Packet] is one packet, [Opcode.Info] says which headers an opcode has, and
// [CheckICRC] checks the ICRC, which [Packet.Parse] does not. The functions panic if a buffer is
// shorter than their comments demand. Functions that parse accept any bytes.
//
// The package knows packets, but no connections. It does not compare PSNs, keys and lengths with
// those that a QP expects, and it writes no IP or UDP headers. [Mark] and [Sack] are an extension
// of SoftRNIC's, in bits and bytes that other devices ignore. The payload of a MAD is the subject
// of package mad.
//
// Sources: IBTA Vol 1 §9.2 (BTH), §9.3 (extensions), §9.7 (reliable service), annexes A14 (XRC),
// A17 (RoCEv2) and A19 (FLUSH and ATOMIC WRITE).
package wire

import "encoding/binary"

// Lengths on the wire, in bytes. [Info.HeaderLen] is that of all headers of an opcode.
const (
	BTHLen          = 12
	rethLen         = 16
	AETHLen         = 4
	atomicETHLen    = 28
	atomicAckETHLen = 8
	immDtLen        = 4
	iethLen         = 4
	fethLen         = 4
	xrcethLen       = 4
	DETHLen         = 8
	ICRCLen         = 4 // after the payload and the pad
	// CNPPayloadLen is the length of a CNP's reserved payload, sent as zeros (IBTA A17.9.3).
	CNPPayloadLen = 16
	// MaxHeaderLen is the longest BTH with extensions: an XRC atomic request's.
	MaxHeaderLen = BTHLen + xrcethLen + atomicETHLen
)

// DefaultPKey is the full-membership key of the default partition, the only one used with RoCEv2.
const DefaultPKey = 0xffff

// BTH is the base transport header (IBTA Vol 1 §9.2; FECN and BECN are A17's and Vol 1 A10's).
//
//	  byte 0        byte 1            byte 2, 3
//	+-------------+-+-+---+---------+-------------------------+
//	|   opcode    |S|M|pad| version |          P_Key          |  S solicited, M migration state
//	+-+-+---------+-+-+---+---------+-------------------------+
//	|F|B|reserved6|            destination QP                 |  F FECN, B BECN; this byte is not under the ICRC
//	+-+-+---------+-------------------------------------------+
//	|A| reserved7 |                  PSN                      |  A acknowledge request
//	+-+-----------+-------------------------------------------+
type BTH struct {
	Opcode     Opcode
	Solicited  bool  // the receiver gets a solicited event
	MigReq     bool  // migration state: migrated
	Pad        uint8 // bytes between the payload and the ICRC, 0–3
	Version    uint8 // transport header version, 0
	PKey       uint16
	FECN, BECN bool
	Reserved6  uint8  // 6 bits
	DestQP     uint32 // 24 bits
	AckReq     bool
	Reserved7  uint8  // 7 bits; see [Mark]
	PSN        uint32 // 24 bits
}

// decode reads BTHLen bytes.
func (h *BTH) decode(b []byte) {
	_ = b[BTHLen-1]
	h.Opcode = Opcode(b[0])
	h.Solicited = b[1]&0x80 != 0
	h.MigReq = b[1]&0x40 != 0
	h.Pad = b[1] >> 4 & 3
	h.Version = b[1] & 0x0f
	h.PKey = binary.BigEndian.Uint16(b[2:])
	h.FECN = b[4]&0x80 != 0
	h.BECN = b[4]&0x40 != 0
	h.Reserved6 = b[4] & 0x3f
	h.DestQP = binary.BigEndian.Uint32(b[4:]) & mask24
	h.AckReq = b[8]&0x80 != 0
	h.Reserved7 = b[8] & 0x7f
	h.PSN = binary.BigEndian.Uint32(b[8:]) & mask24
}

// Encode writes the BTH to the first BTHLen bytes of b.
func (h *BTH) Encode(b []byte) { h.encode(b) }

// encode writes BTHLen bytes. It uses two stores as wide as the ICRC's loads: a load of data from
// several stores would have to wait for them.
func (h *BTH) encode(b []byte) {
	_ = b[BTHLen-1]
	front, back := h.words()
	binary.BigEndian.PutUint64(b, front)
	binary.BigEndian.PutUint32(b[8:], back)
}

// words returns bytes 0 to 7 and 8 to 11.
func (h *BTH) words() (front uint64, back uint32) {
	front = uint64(h.Opcode)<<56 | uint64(bit(h.Solicited, 0x80)|bit(h.MigReq, 0x40)|h.Pad&3<<4|h.Version&0x0f)<<48 | uint64(h.PKey)<<32 |
		uint64(bit(h.FECN, 0x80)|bit(h.BECN, 0x40)|h.Reserved6&0x3f)<<24 | uint64(h.DestQP&mask24)
	return front, uint32(bit(h.AckReq, 0x80)|h.Reserved7&0x7f)<<24 | h.PSN&mask24
}

// Sequence recognizes consecutive packets: their BTHs are equal except for the PSN, which counts
// up.
type Sequence struct {
	front uint64 // bytes 0 to 7
	back  uint32 // bytes 8 to 11 of the previous packet
}

// Sequence returns the sequence of packets that follow that of h.
func (h *BTH) Sequence() Sequence {
	front, back := h.words()
	return Sequence{front, back}
}

// Next reports whether a BTH is that of the next packet. If not, the sequence is unchanged.
func (s *Sequence) Next(bth *[BTHLen]byte) bool {
	next := s.back&^mask24 | (s.back+1)&mask24
	if binary.BigEndian.Uint64(bth[:]) != s.front || binary.BigEndian.Uint32(bth[8:]) != next {
		return false
	}
	s.back = next
	return true
}

func bit(set bool, b byte) byte {
	if set {
		return b
	}
	return 0
}

// RETH is the RDMA extended transport header (IBTA Vol 1 §9.3.3).
//
//	+---------------------------------------------------------+
//	|                 virtual address, 63–32                   |
//	+---------------------------------------------------------+
//	|                 virtual address, 31–0                    |
//	+---------------------------------------------------------+
//	|                         R_Key                            |
//	+---------------------------------------------------------+
//	|             DMA length: of the whole message             |
//	+---------------------------------------------------------+
type RETH struct {
	Addr   uint64 // virtual address in the region of RKey
	RKey   uint32
	Length uint32 // of the whole message, in bytes
}

func (h *RETH) decode(b []byte) {
	_ = b[rethLen-1]
	h.Addr = binary.BigEndian.Uint64(b)
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.Length = binary.BigEndian.Uint32(b[12:])
}

func (h *RETH) encode(b []byte) {
	_ = b[rethLen-1]
	binary.BigEndian.PutUint64(b, h.Addr)
	binary.BigEndian.PutUint32(b[8:], h.RKey)
	binary.BigEndian.PutUint32(b[12:], h.Length)
}

// AETH is the acknowledge extended transport header (IBTA Vol 1 §9.3.5).
//
//	+-+----+------+-------------------------------------------+
//	|0|type| value|                  MSN                      |  type 0 ACK, 1 RNR NAK, 3 NAK
//	+-+----+------+-------------------------------------------+
type AETH struct {
	Syndrome uint8  // a type and its value, see below
	MSN      uint32 // 24 bits: messages that the responder has completed
}

// AETH syndromes (IBTA Vol 1 §9.7.5.1, tables 43–45). The type is in bits 6–5, its value in bits
// 4–0.
const (
	SyndromeACK = 0x00 // with credits
	RNRNak      = 0x20 // receiver not ready, with a timer
	NAK         = 0x60 // with a code

	// AckUnlimited is the value of an ACK without end-to-end credits.
	AckUnlimited = 0x1f

	// NAKs with their codes.
	NakPSNSeq            = NAK
	NakInvalidRequest    = NAK | 1
	NakRemoteAccess      = NAK | 2
	NakRemoteOperational = NAK | 3
	NakInvalidRD         = NAK | 4

	syndromeType  = 0x60
	syndromeValue = 0x1f
)

// Type returns SyndromeACK, RNRNak, NAK, or the reserved 0x40. The reserved top bit is ignored.
func (h *AETH) Type() uint8 { return h.Syndrome & syndromeType }

// Value returns an ACK's credit count code, an RNR NAK's timer code (see [RNRTimer]), or a NAK's
// code.
func (h *AETH) Value() uint8 { return h.Syndrome & syndromeValue }

// Credits returns for how many messages beyond MSN an ACK's sender has receive requests. ok is
// false if it gives no end-to-end credits (IBTA Vol 1 §9.7.7.2).
func (h *AETH) Credits() (n uint32, ok bool) {
	switch v := h.Value(); {
	case v == AckUnlimited:
		return 0, false
	case v < 2:
		return uint32(v), true
	default: // a power of two, or 1.5 times that
		return uint32(2+v&1) << (v/2 - 1), true
	}
}

// IsACK reports whether the AETH is a positive acknowledgement.
func (h *AETH) IsACK() bool { return h.Type() == SyndromeACK }

// IsRNR reports whether the AETH is a receiver-not-ready NAK.
func (h *AETH) IsRNR() bool { return h.Type() == RNRNak }

func (h *AETH) decode(b []byte) {
	v := binary.BigEndian.Uint32(b)
	h.Syndrome, h.MSN = uint8(v>>24), v&mask24
}

func (h *AETH) encode(b []byte) {
	binary.BigEndian.PutUint32(b, uint32(h.Syndrome)<<24|h.MSN&mask24)
}

// AtomicETH is the atomic extended transport header (IBTA Vol 1 §9.3.4).
//
//	+---------------------------------------------------------+
//	|                 virtual address, 64 bits                 |
//	+---------------------------------------------------------+
//	|                         R_Key                            |
//	+---------------------------------------------------------+
//	|           swap, or what to add, data, 64 bits            |
//	+---------------------------------------------------------+
//	|                 compare data, 64 bits                    |
//	+---------------------------------------------------------+
type AtomicETH struct {
	Addr    uint64 // of 8 aligned bytes
	RKey    uint32
	Swap    uint64 // CmpSwap: the new value; FetchAdd: the addend
	Compare uint64 // CmpSwap only
}

func (h *AtomicETH) decode(b []byte) {
	_ = b[atomicETHLen-1]
	h.Addr = binary.BigEndian.Uint64(b)
	h.RKey = binary.BigEndian.Uint32(b[8:])
	h.Swap = binary.BigEndian.Uint64(b[12:])
	h.Compare = binary.BigEndian.Uint64(b[20:])
}

func (h *AtomicETH) encode(b []byte) {
	_ = b[atomicETHLen-1]
	binary.BigEndian.PutUint64(b, h.Addr)
	binary.BigEndian.PutUint32(b[8:], h.RKey)
	binary.BigEndian.PutUint64(b[12:], h.Swap)
	binary.BigEndian.PutUint64(b[20:], h.Compare)
}

// AtomicAckETH is the atomic acknowledge extended transport header: eight bytes (IBTA Vol 1
// §9.3.5.3).
type AtomicAckETH struct {
	Orig uint64 // the previous content of memory
}

// DETH is the datagram extended transport header (IBTA Vol 1 §9.3.2).
//
//	+---------------------------------------------------------+
//	|                         Q_Key                            |
//	+-----------+---------------------------------------------+
//	| reserved8 |                source QP                     |
//	+-----------+---------------------------------------------+
type DETH struct {
	QKey      uint32
	Reserved8 uint8
	SrcQP     uint32 // 24 bits: the QP that sent the datagram
}

func (h *DETH) decode(b []byte) {
	_ = b[DETHLen-1]
	h.QKey = binary.BigEndian.Uint32(b)
	h.Reserved8 = b[4]
	h.SrcQP = binary.BigEndian.Uint32(b[4:]) & mask24
}

func (h *DETH) encode(b []byte) {
	_ = b[DETHLen-1]
	binary.BigEndian.PutUint32(b, h.QKey)
	binary.BigEndian.PutUint32(b[4:], uint32(h.Reserved8)<<24|h.SrcQP&mask24)
}

// FETH is the flush extended transport header; it stands before the RETH (IBTA annex A19).
//
//	+---------------------------------------------+-----+-------+
//	|                 reserved26                  | sel |  plt  |
//	+---------------------------------------------+-----+-------+
type FETH struct {
	Reserved    uint32 // 26 bits
	Selectivity uint8  // FlushRange, FlushRegion
	Placement   uint8  // FlushGlobal, FlushPersistent, or both
}

// Values of a FETH; all others are reserved.
const (
	FlushGlobal     = 1 << 0 // placement: flushed data becomes visible to all
	FlushPersistent = 1 << 1 // placement: flushed data survives a power failure
	FlushRange      = 0      // selectivity: the range in the RETH
	FlushRegion     = 1      // the whole region of the R_Key
)

func (h *FETH) decode(b []byte) {
	v := binary.BigEndian.Uint32(b)
	h.Reserved, h.Selectivity, h.Placement = v>>6, uint8(v>>4&3), uint8(v&15)
}

func (h *FETH) encode(b []byte) {
	binary.BigEndian.PutUint32(b, h.Reserved<<6|uint32(h.Selectivity&3)<<4|uint32(h.Placement&15))
}

// XRCETH is the extended transport header of XRC requests, right after the BTH (IBTA annex A14).
//
//	+-----------+---------------------------------------------+
//	| reserved8 |                 XRC SRQ                      |
//	+-----------+---------------------------------------------+
type XRCETH struct {
	Reserved8 uint8
	SRQ       uint32 // 24 bits: the number of the receiver's XRC SRQ
}

func (h *XRCETH) decode(b []byte) {
	v := binary.BigEndian.Uint32(b)
	h.Reserved8, h.SRQ = uint8(v>>24), v&mask24
}

func (h *XRCETH) encode(b []byte) {
	binary.BigEndian.PutUint32(b, uint32(h.Reserved8)<<24|h.SRQ&mask24)
}
