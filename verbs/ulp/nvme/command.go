package nvme

import (
	"encoding/binary"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

var le = binary.LittleEndian

// Lengths in bytes of a submission queue entry, and of a completion queue entry (NVMe-oF 1.1 §2.1).
const (
	CommandLen    = 64
	CompletionLen = 16
)

// shorter returns the error of a structure that is too short.
func shorter(what string, n, least int) error {
	return verbs.Errorf(syscall.EPROTO, "parse "+what, "%d bytes: must be %d at least", n, least)
}

// Command is a submission queue entry (NVMe 1.4 §4.2). A command capsule has it first, and may have
// data after it.
//
//	byte  0       1       2   3     4..7                     8..15
//	    opcode | flags |   CID   | NSID, or FabricsType | CDW2, CDW3
//	     16..23            24..39        40..63
//	    metadata pointer |  SGL  | CDW10 to CDW15
type Command struct {
	Opcode   Opcode
	Flags    uint8 // fused operation in bits 1:0, use of SGLs in bits 7:6
	CID      uint16
	NSID     uint32 // of a Fabrics command, the FabricsType in bits 7:0
	CDW2     uint32
	CDW3     uint32
	Metadata uint64
	SGL      SGL
	CDW10    uint32
	CDW11    uint32
	CDW12    uint32
	CDW13    uint32
	CDW14    uint32
	CDW15    uint32
}

// Values of Command.Flags.
const (
	FlagFused = 0x03 // mask of the fused operation
	FlagSGL   = 0x40 // the data pointer is an SGL descriptor, as always in fabrics
)

// ParseCommand parses the entry at the start of a command capsule.
func ParseCommand(b []byte) (c Command, err error) {
	if len(b) < CommandLen {
		return c, shorter("command", len(b), CommandLen)
	}
	c = Command{
		Opcode: Opcode(b[0]), Flags: b[1], CID: le.Uint16(b[2:]), NSID: le.Uint32(b[4:]), CDW2: le.Uint32(b[8:]), CDW3: le.Uint32(b[12:]),
		Metadata: le.Uint64(b[16:]), SGL: parseSGL((*[sglLen]byte)(b[24:])),
		CDW10: le.Uint32(b[40:]), CDW11: le.Uint32(b[44:]), CDW12: le.Uint32(b[48:]), CDW13: le.Uint32(b[52:]), CDW14: le.Uint32(b[56:]),
		CDW15: le.Uint32(b[60:]),
	}
	return c, nil
}

// Append appends the entry, of CommandLen bytes.
func (c *Command) Append(b []byte) []byte {
	b = append(b, byte(c.Opcode), c.Flags)
	b = le.AppendUint16(b, c.CID)
	b = le.AppendUint32(b, c.NSID)
	b = le.AppendUint32(b, c.CDW2)
	b = le.AppendUint32(b, c.CDW3)
	b = le.AppendUint64(b, c.Metadata)
	b = c.SGL.append(b)
	for _, w := range [...]uint32{c.CDW10, c.CDW11, c.CDW12, c.CDW13, c.CDW14, c.CDW15} {
		b = le.AppendUint32(b, w)
	}
	return b
}

// FabricsType returns the operation of a Fabrics command.
func (c *Command) FabricsType() FabricsType { return FabricsType(c.NSID) }

// SLBA returns the starting LBA of Read, Write, Compare and Write Zeroes (NVMe 1.4 §6.9).
func (c *Command) SLBA() uint64 { return uint64(c.CDW11)<<32 | uint64(c.CDW10) }

// Blocks returns the number of logical blocks of these commands, 1 to 65536. On the wire it is 0's
// based.
func (c *Command) Blocks() uint32 { return c.CDW12&0xffff + 1 }

// SetRange sets the range of these commands. blocks is 1 to 65536.
func (c *Command) SetRange(slba uint64, blocks uint32) {
	c.CDW10, c.CDW11 = uint32(slba), uint32(slba>>32)
	c.CDW12 = c.CDW12&^0xffff | (blocks-1)&0xffff
}

// Bits of CDW12 of Read, Write and Write Zeroes (NVMe 1.4 §6.9, §6.15, §6.17).
const (
	ForceUnitAccess = 1 << 30 // the data is on non-volatile media before the command completes
	Deallocate      = 1 << 25 // Write Zeroes may deallocate
)

// DSMDeallocate in CDW11 of Dataset Management requests deallocation (NVMe 1.4 §6.7).
const DSMDeallocate = 1 << 2

// Completion is a completion queue entry, and a response capsule (NVMe 1.4 §4.6).
type Completion struct {
	Result uint64 // DW0 and DW1, depending on the command
	SQHead uint16 // or 0xffff without flow control (NVMe-oF 1.1 §2.4.1)
	SQID   uint16 // reserved in fabrics
	CID    uint16
	Status Status
}

// ParseCompletion parses a response capsule.
func ParseCompletion(b []byte) (c Completion, err error) {
	if len(b) < CompletionLen {
		return c, shorter("completion", len(b), CompletionLen)
	}
	return Completion{
		Result: le.Uint64(b), SQHead: le.Uint16(b[8:]), SQID: le.Uint16(b[10:]), CID: le.Uint16(b[12:]), Status: Status(le.Uint16(b[14:]) >> 1),
	}, nil
}

// Append appends the entry, of CompletionLen bytes. Its phase tag is 0.
func (c *Completion) Append(b []byte) []byte {
	b = le.AppendUint64(b, c.Result)
	b = le.AppendUint16(b, c.SQHead)
	b = le.AppendUint16(b, c.SQID)
	b = le.AppendUint16(b, c.CID)
	return le.AppendUint16(b, uint16(c.Status)<<1)
}
