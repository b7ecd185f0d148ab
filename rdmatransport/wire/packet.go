package wire

import (
	"encoding/binary"
	"errors"
)

// Errors of [Packet.Parse]. Each is a property of the packet alone.
var (
	ErrShort   = errors.New("roce: shorter than its headers and ICRC")
	ErrOpcode  = errors.New("roce: unknown opcode")
	ErrVersion = errors.New("roce: transport header version is not 0")
	ErrPad     = errors.New("roce: more pad than payload, or pad and payload not a multiple of 4 bytes")
	ErrPayload = errors.New("roce: payload where the opcode has none, or not of the length it must have")
)

// Packet is one RoCEv2 packet, with values in host order. The opcode determines which extension
// headers are valid ([Opcode.Info]). Parse leaves the others unchanged.
type Packet struct {
	BTH
	RETH           RETH
	AETH           AETH
	AtomicETH      AtomicETH
	AtomicAckETH   AtomicAckETH
	Imm            uint32 // immediate data (IBTA Vol 1 §9.3.6)
	InvalidateRKey uint32 // IETH (§9.3.7)
	DETH           DETH
	FETH           FETH
	XRCETH         XRCETH
	Payload        []byte // without pad; of an acknowledgement, its Sack
}

// Parse parses the packet that fills the UDP payload b, including the ICRC, which it does not
// check. Payload is a part of b. The error is one of this package's, and p is then undefined. p may
// be reused.
func (p *Packet) Parse(b []byte) error { return p.parse(b, b) }

// ParseTrimmed parses the BTH of a packet that may have lost its end, and nothing else: a switch
// has trimmed it. Nothing protects what it says. The error is ErrShort, ErrVersion or ErrOpcode.
func (p *Packet) ParseTrimmed(b []byte) error {
	if len(b) < BTHLen {
		return ErrShort
	}
	if p.BTH.decode(b); p.Version != 0 {
		return ErrVersion
	}
	if p.Payload = nil; !p.Opcode.Info().Known() {
		return ErrOpcode
	}
	return nil
}

// Scratch is a buffer for ParseInPlace.
type Scratch [512]byte

// ParseInPlace is Parse for a packet in memory that may change at any time. The headers are parsed
// from a copy. Payload is a copy too, except for data packets (SEND, WRITE, READ response). For
// these, Payload is a part of b of which no byte has been read. The copies are in scratch.
func (p *Packet) ParseInPlace(b []byte, scratch *Scratch) error {
	n := copy(scratch[:MaxHeaderLen], b)
	if n < BTHLen {
		return ErrShort
	}
	if info := Opcode(scratch[0]).Info(); info.Send() || info.Write() || info.Read() && info.Response() {
		return p.parse(scratch[:n], b)
	}
	if len(b) > len(scratch) {
		return ErrPayload
	}
	return p.Parse(scratch[:n+copy(scratch[n:], b[n:])])
}

// parse parses the headers of packet b from head, a prefix of b that is long enough for all
// headers.
func (p *Packet) parse(head, b []byte) error {
	if len(b) < BTHLen+ICRCLen {
		return ErrShort
	}
	if head[1]&0x0f != 0 {
		return ErrVersion
	}
	p.BTH.decode(head)
	info := p.Opcode.Info()
	if !info.Known() {
		p.DETH, p.Payload = DETH{}, nil // those of the previous packet
		return ErrOpcode
	}
	n := info.HeaderLen()
	if len(b) < n+ICRCLen {
		return ErrShort
	}
	payload := b[n : len(b)-ICRCLen]
	if len(payload)%4 != 0 || int(p.Pad) > len(payload) {
		return ErrPad
	}
	if p.Opcode == CNP && (len(payload) != CNPPayloadLen || p.Pad != 0) {
		return ErrPayload
	}
	if !info.HasPayload() && len(payload) != 0 && !p.sack(payload) {
		return ErrPayload
	}
	p.Payload = payload[:len(payload)-int(p.Pad)]

	x := head[BTHLen:n]
	if info.HasXRCETH() {
		p.XRCETH.decode(x)
		x = x[xrcethLen:]
	}
	if info.HasDETH() {
		p.DETH.decode(x)
		x = x[DETHLen:]
	}
	if info.HasFETH() {
		p.FETH.decode(x)
		x = x[fethLen:]
	}
	if info.HasRETH() {
		p.RETH.decode(x)
		x = x[rethLen:]
	}
	if info.HasAtomicETH() {
		p.AtomicETH.decode(x)
		x = x[atomicETHLen:]
	}
	if info.HasAETH() {
		p.AETH.decode(x)
		x = x[AETHLen:]
	}
	if info.HasAtomicAckETH() {
		p.AtomicAckETH.Orig = binary.BigEndian.Uint64(x)
		x = x[atomicAckETHLen:]
	}
	if info.HasImmDt() {
		p.Imm = binary.BigEndian.Uint32(x)
		x = x[immDtLen:]
	}
	if info.HasIETH() {
		p.InvalidateRKey = binary.BigEndian.Uint32(x)
	}
	return nil
}

// HeaderLen returns the number of bytes that EncodeHeader writes.
func (p *Packet) HeaderLen() int { return p.Opcode.Info().HeaderLen() }

// Size returns the length of the packet in bytes: headers, payload, pad, ICRC.
func (p *Packet) Size() int { return p.HeaderLen() + len(p.Payload) + int(p.Pad) + ICRCLen }

// PadLen returns BTH.Pad for a payload of n bytes: what a multiple of 4 lacks.
func PadLen(n int) uint8 { return uint8(-n & 3) }

// EncodeHeader writes the BTH and the opcode's extensions to b, which must have HeaderLen bytes,
// and returns that number.
func (p *Packet) EncodeHeader(b []byte) int {
	info := p.Opcode.Info()
	p.BTH.encode(b)
	n := BTHLen
	if info.HasXRCETH() {
		p.XRCETH.encode(b[n:])
		n += xrcethLen
	}
	if info.HasDETH() {
		p.DETH.encode(b[n:])
		n += DETHLen
	}
	if info.HasFETH() {
		p.FETH.encode(b[n:])
		n += fethLen
	}
	if info.HasRETH() {
		p.RETH.encode(b[n:])
		n += rethLen
	}
	if info.HasAtomicETH() {
		p.AtomicETH.encode(b[n:])
		n += atomicETHLen
	}
	if info.HasAETH() {
		p.AETH.encode(b[n:])
		n += AETHLen
	}
	if info.HasAtomicAckETH() {
		binary.BigEndian.PutUint64(b[n:], p.AtomicAckETH.Orig)
		n += atomicAckETHLen
	}
	if info.HasImmDt() {
		binary.BigEndian.PutUint32(b[n:], p.Imm)
		n += immDtLen
	}
	if info.HasIETH() {
		binary.BigEndian.PutUint32(b[n:], p.InvalidateRKey)
		n += iethLen
	}
	return n
}

// Encode writes the whole packet to b, whose length must be Size: headers, a copy of the payload,
// zeros as pad, ICRC. header is the IP and UDP headers before it, as for [ICRC]; if it is empty,
// the ICRC is zeros. The caller sets BTH.Pad ([PadLen]).
func (p *Packet) Encode(header, b []byte) {
	n := p.EncodeHeader(b)
	n += copy(b[n:], p.Payload)
	clear(b[n : n+int(p.Pad)])
	PutICRC(header, b)
}
