package nvme

import (
	"net/netip"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// LogPage is the identifier of a log page (NVMe 1.4 §5.14.1).
type LogPage uint8

const (
	LogErrors            LogPage = 0x01
	LogSMART             LogPage = 0x02
	LogFirmware          LogPage = 0x03
	LogChangedNamespaces LogPage = 0x04
	LogCommands          LogPage = 0x05
	LogDiscovery         LogPage = 0x70 // NVMe-oF 1.1 §5.4
)

// LogParams are the parameters of a Get Log Page command, in CDW10 to CDW13 (NVMe 1.4 §5.14).
type LogParams struct {
	Page   LogPage
	Retain bool   // the asynchronous event is not cleared (RAE)
	Length uint64 // bytes, a multiple of 4, 4 at least
	Offset uint64 // bytes
}

// LogParams returns the parameters of a Get Log Page command.
func (c *Command) LogParams() LogParams {
	dwords := uint64(c.CDW10>>16) | uint64(c.CDW11&0xffff)<<16
	return LogParams{LogPage(c.CDW10), c.CDW10&(1<<15) != 0, 4 * (dwords + 1), uint64(c.CDW12) | uint64(c.CDW13)<<32}
}

// Command returns the command, whose data has Length bytes.
func (p *LogParams) Command() Command {
	dwords := p.Length/4 - 1
	c := Command{Opcode: GetLogPage, Flags: FlagSGL, NSID: AllNamespaces, CDW10: uint32(p.Page) | uint32(dwords)<<16,
		CDW11: uint32(dwords>>16) & 0xffff, CDW12: uint32(p.Offset), CDW13: uint32(p.Offset >> 32)}
	if p.Retain {
		c.CDW10 |= 1 << 15
	}
	return c
}

// SMARTLen is the length of the log page SMART, bytes.
const SMARTLen = 512

// SMART is the log page SMART / Health Information (NVMe 1.4 §5.14.1.2), limited to values that a
// target without a physical device has.
type SMART struct {
	CriticalWarning uint8
	AvailableSpare  uint8 // percent
	UnitsRead       uint64
	UnitsWritten    uint64 // 1000 × 512 bytes, rounded up
	Reads, Writes   uint64 // commands
	PowerCycles     uint64
	PowerOn         time.Duration // whole hours on the wire
	UnsafeShutdowns uint64
	MediaErrors     uint64
	ErrorLogEntries uint64
}

// WarnReliability is the bit of CriticalWarning that says that data may be lost.
const WarnReliability = 1 << 2

// Append appends the page, of SMARTLen bytes.
func (s *SMART) Append(b []byte) []byte {
	b, d := grow(b, SMARTLen)
	d[0], d[3] = s.CriticalWarning, s.AvailableSpare
	for i, v := range s.counters() { // of 16 bytes
		le.PutUint64(d[smartCounters[i]:], *v)
	}
	le.PutUint64(d[smartHours:], uint64(s.PowerOn/time.Hour))
	return b
}

var smartCounters = [...]int{32, 48, 64, 80, 112, 144, 160, 176}

const smartHours = 128

func (s *SMART) counters() [len(smartCounters)]*uint64 {
	return [...]*uint64{&s.UnitsRead, &s.UnitsWritten, &s.Reads, &s.Writes, &s.PowerCycles, &s.UnsafeShutdowns, &s.MediaErrors,
		&s.ErrorLogEntries}
}

// ParseSMART parses the page. Of counters it has the lower 64 bits.
func ParseSMART(b []byte) (s SMART, err error) {
	if len(b) < SMARTLen {
		return s, shorter("SMART log", len(b), SMARTLen)
	}
	s.CriticalWarning, s.AvailableSpare = b[0], b[3]
	for i, v := range s.counters() {
		*v = le.Uint64(b[smartCounters[i]:])
	}
	s.PowerOn = time.Duration(min(le.Uint64(b[smartHours:]), 1<<20)) * time.Hour
	return s, nil
}

// ErrorEntryLen is the length of an entry of the error log, bytes.
const ErrorEntryLen = 64

// ErrorEntry is an entry of the log page Error Information (NVMe 1.4 §5.14.1.1).
type ErrorEntry struct {
	Count    uint64 // of errors, from 1 on
	SQID     uint16
	CID      uint16
	Status   Status
	Location uint16 // of the error in the command, or 0xffff
	LBA      uint64
	NSID     uint32
}

// Append appends the entry, of ErrorEntryLen bytes.
func (e *ErrorEntry) Append(b []byte) []byte {
	b = le.AppendUint64(b, e.Count)
	b = le.AppendUint16(b, e.SQID)
	b = le.AppendUint16(b, e.CID)
	b = le.AppendUint16(b, uint16(e.Status)<<1)
	b = le.AppendUint16(b, e.Location)
	b = le.AppendUint64(b, e.LBA)
	b = le.AppendUint32(b, e.NSID)
	return append(b, make([]byte, ErrorEntryLen-28)...)
}

// ParseErrorEntry parses an entry.
func ParseErrorEntry(b []byte) (e ErrorEntry, err error) {
	if len(b) < ErrorEntryLen {
		return e, shorter("error log entry", len(b), ErrorEntryLen)
	}
	return ErrorEntry{le.Uint64(b), le.Uint16(b[8:]), le.Uint16(b[10:]), Status(le.Uint16(b[12:]) >> 1), le.Uint16(b[14:]),
		le.Uint64(b[16:]), le.Uint32(b[24:])}, nil
}

// AppendFirmwareLog appends the log page Firmware Slot Information (NVMe 1.4 §5.14.1.3), of 512
// bytes, with one slot.
func AppendFirmwareLog(b []byte, revision string) []byte {
	b, d := grow(b, 512)
	d[0] = 1
	putText(d[8:16], revision, ' ')
	return b
}

// Effects of commands in the log page LogCommands (NVMe 1.4 §5.14.1.5).
const (
	EffectSupported = 1 << 0
	EffectWrites    = 1 << 1 // changes the content of logical blocks
)

// AppendCommandLog appends the log page Commands Supported and Effects, of 4096 bytes.
func AppendCommandLog(b []byte, admin, io map[Opcode]uint32) []byte {
	b, d := grow(b, 4096)
	for o, effects := range admin {
		le.PutUint32(d[4*int(o):], effects)
	}
	for o, effects := range io {
		le.PutUint32(d[1024+4*int(o):], effects)
	}
	return b
}

// Async is the result of an Asynchronous Event Request (NVMe 1.4 §5.2.1): the type of the event in
// bits 2:0, the event in bits 15:8, and the log page in bits 23:16.
type Async uint32

const (
	AsyncNamespaceChanged Async = 2 | 0x00<<8 | Async(LogChangedNamespaces)<<16
	AsyncDiscoveryChanged Async = 2 | 0xf0<<8 | Async(LogDiscovery)<<16
)

// Lengths in bytes of the discovery log's header and entries.
const (
	DiscoveryHeaderLen = 1024
	DiscoveryEntryLen  = 1024
)

// Values of DiscoveryEntry (NVMe-oF 1.1 §5.4).
const (
	TransportRDMA        = 1
	SubsystemDiscovery   = 1 // Subtype: refers to another discovery service
	SubsystemNVM         = 2
	SubsystemCurrent     = 3      // this discovery service
	RequirementNoSecure  = 2      // Requirements: no secure channel is required
	RequirementNoSQFlow  = 1 << 2 // Requirements: hosts may do without SQHead
	rdmaConnected        = 1
	rdmaCM               = 1
	discoveryTextOffset  = 32
	discoveryAdminQueue  = 32
	discoverySubNQN      = 256
	discoveryAddress     = 512
	discoveryTransportID = 768
)

// Provider is the RDMA provider of a discovery entry.
type Provider uint8

const (
	ProviderAny    Provider = 1
	ProviderIB     Provider = 2
	ProviderRoCE   Provider = 3
	ProviderRoCEv2 Provider = 4
	ProviderIWARP  Provider = 5
)

// DiscoveryHeader is the start of the discovery log page (NVMe-oF 1.1 §5.4).
type DiscoveryHeader struct {
	Generation   uint64 // changes with the entries
	Records      uint64 // entries that follow
	RecordFormat uint16 // 0
}

// Append appends the header, of DiscoveryHeaderLen bytes.
func (h *DiscoveryHeader) Append(b []byte) []byte {
	b = le.AppendUint64(b, h.Generation)
	b = le.AppendUint64(b, h.Records)
	b = le.AppendUint16(b, h.RecordFormat)
	return append(b, make([]byte, DiscoveryHeaderLen-18)...)
}

// ParseDiscoveryHeader parses the header.
func ParseDiscoveryHeader(b []byte) (h DiscoveryHeader, err error) {
	if len(b) < 18 { // the rest is reserved
		return h, shorter("discovery log", len(b), 18)
	}
	h = DiscoveryHeader{le.Uint64(b), le.Uint64(b[8:]), le.Uint16(b[16:])}
	if h.RecordFormat != 0 {
		return h, verbs.Errorf(syscall.EPROTO, "parse discovery log", "record format %d: must be 0", h.RecordFormat)
	}
	return h, nil
}

// DiscoveryEntry is an entry of the discovery log page (NVMe-oF 1.1 §5.4, §7.3.7): a subsystem, and
// an address of it.
type DiscoveryEntry struct {
	Transport    uint8 // TransportRDMA
	Subtype      uint8
	Requirements uint8
	PortID       uint16
	CNTLID       uint16 // DynamicController
	AdminSQSize  uint16 // commands; 0 means 32
	SubsystemNQN string
	Addr         netip.AddrPort // of transport RDMA; invalid if the entry has another family or no number
	Provider     Provider
}

// Append appends the entry, of DiscoveryEntryLen bytes.
func (e *DiscoveryEntry) Append(b []byte) []byte {
	b, d := grow(b, DiscoveryEntryLen)
	family, asq := byte(1), e.AdminSQSize
	if !e.Addr.Addr().Unmap().Is4() {
		family = 2
	}
	if asq == 0 {
		asq = discoveryAdminQueue
	}
	d[0], d[1], d[2], d[3] = e.Transport, family, e.Subtype, e.Requirements
	le.PutUint16(d[4:], e.PortID)
	le.PutUint16(d[6:], e.CNTLID)
	le.PutUint16(d[8:], asq)
	putText(d[discoveryTextOffset:64], portText(e.Addr), ' ')
	putText(d[discoverySubNQN:discoveryAddress], e.SubsystemNQN, 0)
	putText(d[discoveryAddress:discoveryTransportID], e.Addr.Addr().Unmap().WithZone("").String(), ' ')
	d[discoveryTransportID], d[discoveryTransportID+1], d[discoveryTransportID+2] = rdmaConnected, byte(e.Provider), rdmaCM
	return b
}

// ParseDiscoveryEntry parses an entry.
func ParseDiscoveryEntry(b []byte) (e DiscoveryEntry, err error) {
	if len(b) < DiscoveryEntryLen {
		return e, shorter("discovery entry", len(b), DiscoveryEntryLen)
	}
	e = DiscoveryEntry{
		Transport: b[0], Subtype: b[2], Requirements: b[3], PortID: le.Uint16(b[4:]), CNTLID: le.Uint16(b[6:]), AdminSQSize: le.Uint16(b[8:]),
		SubsystemNQN: text(b[discoverySubNQN:discoveryAddress]), Provider: Provider(b[discoveryTransportID+1]),
	}
	if b[1] == 1 || b[1] == 2 { // IPv4 or IPv6
		e.Addr = parseAddr(text(b[discoveryAddress:discoveryTransportID]), text(b[discoveryTextOffset:64]))
	}
	return e, nil
}
