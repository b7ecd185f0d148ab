package nvme

import (
	"bytes"
	"strings"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// DiscoveryNQN is the name of the discovery subsystem of each target (NVMe-oF 1.1 §1.5.2).
const DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// MaxNQN is the length of the longest NQN, bytes (NVMe 1.4 §7.9).
const MaxNQN = 223

const nqnLen = 256 // of a field with an NQN and its NUL

// CheckNQN returns an error unless a name is an NQN: "nqn." and a date, or a UUID.
func CheckNQN(nqn string) error {
	switch {
	case len(nqn) > MaxNQN:
		return verbs.Errorf(verbs.ErrInvalid, "check NQN", "%d bytes: must be %d at most", len(nqn), MaxNQN)
	case !strings.HasPrefix(nqn, "nqn.") || strings.ContainsAny(nqn, "\x00\n"):
		return verbs.Errorf(verbs.ErrInvalid, "check NQN", "%q: must begin with nqn., such as nqn.2014-08.org.example:disk", nqn)
	}
	return nil
}

// parseNQN parses a field with an NQN, which a NUL ends.
func parseNQN(what string, b []byte) (string, error) {
	end := bytes.IndexByte(b[:nqnLen], 0)
	if end < 0 || end > MaxNQN {
		return "", verbs.Errorf(syscall.EPROTO, "parse connect data", "the %s has no NUL within %d bytes", what, MaxNQN+1)
	}
	return string(b[:end]), nil
}

// appendText appends a field of n bytes with a text, padded with a byte. A longer text is cut.
func appendText(b []byte, text string, n int, pad byte) []byte {
	b = append(b, text[:min(len(text), n)]...)
	for range n - len(text) {
		b = append(b, pad)
	}
	return b
}

// Attributes of a Connect command.
const (
	ConnectPriority   = 0x03   // mask of the queue's priority class
	ConnectNoSQFlow   = 1 << 2 // the host needs no SQHead in completions
	DynamicController = 0xffff // ConnectData.CNTLID that requests a new controller
	MaxControllerID   = 0xffef // of controllers
)

// ConnectCommand has the parameters of a Connect command, in CDW10 to CDW12 (NVMe-oF 1.1 §3.3).
type ConnectCommand struct {
	RecordFormat uint16 // 0
	QID          uint16
	SQSize       uint16 // 0's based
	Attributes   uint8
	KeepAlive    time.Duration // timeout in whole ms on the wire; 0: none
}

// ConnectParams returns the parameters of a Connect command.
func (c *Command) ConnectParams() ConnectCommand {
	return ConnectCommand{uint16(c.CDW10), uint16(c.CDW10 >> 16), uint16(c.CDW11), uint8(c.CDW11 >> 16),
		time.Duration(c.CDW12) * time.Millisecond}
}

// Command returns the command. Its data is ConnectData.
func (p *ConnectCommand) Command() Command {
	return Command{
		Opcode: Fabrics, Flags: FlagSGL, NSID: uint32(Connect), CDW10: uint32(p.RecordFormat) | uint32(p.QID)<<16,
		CDW11: uint32(p.SQSize) | uint32(p.Attributes)<<16, CDW12: uint32(p.KeepAlive / time.Millisecond),
	}
}

// ConnectDataLen is the length of ConnectData, bytes.
const ConnectDataLen = 1024

// ConnectData is the data of a Connect command (NVMe-oF 1.1 §3.3).
//
//	byte  0..15     16..17   18..255    256..511   512..767   768..1023
//	    host ID  | CNTLID | reserved | SUBNQN   | HOSTNQN  | reserved
type ConnectData struct {
	HostID       [16]byte
	CNTLID       uint16 // DynamicController on an Admin queue
	SubsystemNQN string
	HostNQN      string
}

// Offsets of fields in ConnectData, for the completion of a Connect command with ConnectInvalid.
const (
	ConnectCNTLIDOffset  = 16
	ConnectSubNQNOffset  = 256
	ConnectHostNQNOffset = 512
)

// ParseConnectData parses the data of a Connect command.
func ParseConnectData(b []byte) (d ConnectData, err error) {
	if len(b) < ConnectDataLen {
		return d, shorter("connect data", len(b), ConnectDataLen)
	}
	d.HostID, d.CNTLID = [16]byte(b), le.Uint16(b[ConnectCNTLIDOffset:])
	if d.SubsystemNQN, err = parseNQN("SUBNQN", b[ConnectSubNQNOffset:]); err != nil {
		return d, err
	}
	d.HostNQN, err = parseNQN("HOSTNQN", b[ConnectHostNQNOffset:])
	return d, err
}

// Append appends the data, of ConnectDataLen bytes.
func (d *ConnectData) Append(b []byte) []byte {
	b = append(b, d.HostID[:]...)
	b = le.AppendUint16(b, d.CNTLID)
	b = append(b, make([]byte, ConnectSubNQNOffset-18)...)
	b = appendText(b, d.SubsystemNQN, nqnLen, 0)
	b = appendText(b, d.HostNQN, nqnLen, 0)
	return append(b, make([]byte, nqnLen)...)
}

// ConnectInvalidResult returns the result of a Connect command that fails with ConnectInvalid: the
// offset of the invalid field, in the data or in the command (NVMe-oF 1.1 §3.3).
func ConnectInvalidResult(offset uint16, inData bool) uint64 {
	r := uint64(offset)
	if inData {
		r |= 1 << 16
	}
	return r
}

// Bits of a Connect command's result that require authentication, behind the controller ID in bits
// 15:0 (NVMe 2.0 §6.3, AUTHREQ).
const (
	ConnectAuthenticate = 1 << 17 // ATR
	ConnectSecure       = 1 << 18 // ASCR: with secure channel concatenation
)

// AuthProtocol is the security protocol of authentication commands in fabrics (NVMe 2.0 §6.1): in
// bits 31:24 of CDW10, and the protocol specific field in bits 23:8.
const AuthProtocol = 0xe9<<24 | 0x0101<<8

// AuthCommand returns Authentication Send or Receive, whose data has a length in bytes. The command
// has no SGL yet.
func AuthCommand(t FabricsType, length uint32) Command {
	return Command{Opcode: Fabrics, Flags: FlagSGL, NSID: uint32(t), CDW10: AuthProtocol, CDW11: length}
}

// AuthLength returns the length of the data of Authentication Send or Receive, bytes. It returns
// false if the command is not of AuthProtocol.
func (c *Command) AuthLength() (length uint32, ok bool) {
	return c.CDW11, c.CDW10&^0xff == AuthProtocol
}

// Property is the offset of a controller property (NVMe-oF 1.1 §3.5, NVMe 1.4 §3.1).
type Property uint32

const (
	PropertyCAP  Property = 0x00 // capabilities, 8 bytes
	PropertyVS   Property = 0x08 // version, 4 bytes, as are the following
	PropertyCC   Property = 0x14 // configuration
	PropertyCSTS Property = 0x1c // status
)

// PropertyParams returns the offset of a Property Get or Set command, the property's length in
// bytes, 4 or 8, and the value of Set.
func (c *Command) PropertyParams() (p Property, length int, value uint64) {
	length = 4
	if c.CDW10&7 == 1 {
		length = 8
	}
	return Property(c.CDW11), length, uint64(c.CDW13)<<32 | uint64(c.CDW12)
}

// PropertyGetCommand returns the command that reads a property.
func PropertyGetCommand(p Property) Command {
	c := Command{Opcode: Fabrics, Flags: FlagSGL, NSID: uint32(PropertyGet), SGL: Keyed(0, 0, 0, false), CDW11: uint32(p)}
	if p == PropertyCAP {
		c.CDW10 = 1
	}
	return c
}

// PropertySetCommand returns the command that writes a property of 4 bytes.
func PropertySetCommand(p Property, value uint32) Command {
	return Command{Opcode: Fabrics, Flags: FlagSGL, NSID: uint32(PropertySet), SGL: Keyed(0, 0, 0, false), CDW11: uint32(p), CDW12: value}
}

// Version is the version that controllers report: 1.4.0.
const Version = 1<<16 | 4<<8

// Bits of the capabilities, CAP (NVMe 1.4 §3.1.1).
const (
	CAPContiguous = 1 << 16 // queues are contiguous, as always in fabrics
	CAPCommandSet = 1 << 37 // the NVM command set
)

// CAPMaxQueueEntries returns the largest SQSize, 0's based.
func CAPMaxQueueEntries(capability uint64) uint16 { return uint16(capability) }

// CAPTimeout returns the time within which CSTSReady follows CCEnable.
func CAPTimeout(capability uint64) time.Duration {
	return time.Duration(capability>>24&0xff) * 500 * time.Millisecond
}

// MakeCAP returns capabilities with a largest SQSize and a timeout, up to 127.5 s.
func MakeCAP(maxQueueEntries uint16, timeout time.Duration) uint64 {
	return uint64(maxQueueEntries) | CAPContiguous | uint64(timeout/(500*time.Millisecond))&0xff<<24 | CAPCommandSet
}

// Bits of the configuration, CC (NVMe 1.4 §3.1.5).
const (
	CCEnable     = 1 << 0
	CCShutdown   = 3 << 14 // mask; not 0: shut down
	CCShutNormal = 1 << 14
	CCEntrySizes = 6<<16 | 4<<20 // of I/O queues: 2^6 and 2^4 bytes
)

// Bits of the status, CSTS (NVMe 1.4 §3.1.6).
const (
	CSTSReady        = 1 << 0
	CSTSFatal        = 1 << 1
	CSTSShutComplete = 2 << 2
)
