package nvme

import (
	"strings"
)

// IdentifyLen is the length of all data of Identify commands, bytes.
const IdentifyLen = 4096

// CNS selects the data of an Identify command, in bits 7:0 of CDW10 (NVMe 1.4 §5.15.1).
type CNS uint8

const (
	CNSNamespace       CNS = 0x00
	CNSController      CNS = 0x01
	CNSNamespaceList   CNS = 0x02 // active ones, greater than NSID
	CNSDescriptors     CNS = 0x03 // namespace identification descriptors
	CNSCommandSetNS    CNS = 0x05 // specific to the I/O command set in CDW11
	CNSCommandSetCtrl  CNS = 0x06
	CNSIndependentNS   CNS = 0x08 // the same for all I/O command sets (NVMe 2.0 §5.17.2.8)
	CNSControllersOfNS CNS = 0x12 // controllers that a namespace is attached to
	CNSControllers     CNS = 0x13 // controllers of the subsystem
)

// CNS returns the structure that an Identify command requests.
func (c *Command) CNS() CNS { return CNS(c.CDW10) }

// AllNamespaces as NSID means all namespaces, or none in particular.
const AllNamespaces = 0xffffffff

// Values of IdentifyController.
const (
	ControllerIO        = 1      // Type
	ControllerDiscovery = 2      // Type
	MultiPort           = 1 << 0 // CMIC: the subsystem may have several ports
	MultiController     = 1 << 1 // CMIC: and several controllers
	AEAttribute         = 1 << 8 // OAES, and in the feature AsyncEventConfig: namespace attribute notices
	AEDiscovery         = 1 << 31
	HostID128           = 1 << 0 // Attributes: host IDs have 128 bits
	TrafficKeepAlive    = 1 << 6 // Attributes: commands restart the keep alive timer
	SupportsCompare     = 1 << 0 // ONCS
	SupportsDSM         = 1 << 2 // ONCS
	SupportsZeroes      = 1 << 3 // ONCS
	SGLSupported        = 1 << 0 // SGLS: without alignment
	SGLKeyed            = 1 << 2 // SGLS: keyed data blocks
	SGLInCapsule        = 1 << 20
	LogEffects          = 1 << 1 // LPA: log page of commands and effects
	LogExtended         = 1 << 2 // LPA: offsets, and lengths of more than 12 bits
	FabricsDisconnect   = 1 << 0 // OFCS
)

// IdentifyController is the controller's data structure (NVMe 1.4 §5.15.2.2, NVMe-oF 1.1 §4.1).
type IdentifyController struct {
	Serial         string // 20 bytes of ASCII at most
	Model          string // 40
	Firmware       string // 8
	CMIC           uint8
	MDTS           uint8 // largest transfer: 2^MDTS × 4 KiB; 0: no limit
	CNTLID         uint16
	Version        uint32
	OAES           uint32
	Attributes     uint32
	Type           uint8
	AbortLimit     uint8 // 0's based
	AsyncLimit     uint8 // outstanding Asynchronous Event Requests, 0's based
	FirmwareSlots  uint8 // FRMW
	LPA            uint8
	ErrorEntries   uint8  // entries of the error log, 0's based
	KeepAliveUnits uint16 // granularity of the timeout, 100 ms
	MaxCommands    uint16 // outstanding on an I/O queue
	Namespaces     uint32 // largest NSID
	ONCS           uint16
	VolatileCache  bool
	SGLS           uint32
	SubsystemNQN   string
	CommandCapsule uint32 // largest command capsule of I/O queues, 16 bytes (IOCCSZ)
	Response       uint32 // largest response capsule, 16 bytes (IORCSZ)
	DataOffset     uint16 // of data in a capsule after the command, 16 bytes (ICDOFF)
	SGLDescriptors uint8  // in a capsule at most (MSDBD)
	OFCS           uint16
}

// fields calls f for each field of the structure's encoding in b.
func (i *IdentifyController) numbers(b []byte, u8 func([]byte, *uint8), u16 func([]byte, *uint16), u32 func([]byte, *uint32)) {
	u8(b[76:], &i.CMIC)
	u8(b[77:], &i.MDTS)
	u16(b[78:], &i.CNTLID)
	u32(b[80:], &i.Version)
	u32(b[92:], &i.OAES)
	u32(b[96:], &i.Attributes)
	u8(b[111:], &i.Type)
	u8(b[258:], &i.AbortLimit)
	u8(b[259:], &i.AsyncLimit)
	u8(b[260:], &i.FirmwareSlots)
	u8(b[261:], &i.LPA)
	u8(b[262:], &i.ErrorEntries)
	u16(b[320:], &i.KeepAliveUnits)
	u16(b[514:], &i.MaxCommands)
	u32(b[516:], &i.Namespaces)
	u16(b[520:], &i.ONCS)
	u32(b[536:], &i.SGLS)
	u32(b[1792:], &i.CommandCapsule)
	u32(b[1796:], &i.Response)
	u16(b[1800:], &i.DataOffset)
	u8(b[1803:], &i.SGLDescriptors)
	u16(b[1804:], &i.OFCS)
}

const (
	sqesCQES  = 512 // sizes of queue entries
	vwcOffset = 525 // volatile write cache
	vwcFlush  = 3<<1 | 1
	subNQN    = 768
)

func put8(b []byte, v *uint8)   { b[0] = *v }
func put16(b []byte, v *uint16) { le.PutUint16(b, *v) }
func put32(b []byte, v *uint32) { le.PutUint32(b, *v) }
func get8(b []byte, v *uint8)   { *v = b[0] }
func get16(b []byte, v *uint16) { *v = le.Uint16(b) }
func get32(b []byte, v *uint32) { *v = le.Uint32(b) }

// Append appends the structure, of IdentifyLen bytes. Texts are padded with blanks, or cut.
func (i *IdentifyController) Append(b []byte) []byte {
	b, d := grow(b, IdentifyLen)
	i.numbers(d, put8, put16, put32)
	putText(d[4:24], i.Serial, ' ')
	putText(d[24:64], i.Model, ' ')
	putText(d[64:72], i.Firmware, ' ')
	d[sqesCQES], d[sqesCQES+1] = 0x66, 0x44
	if i.VolatileCache {
		d[vwcOffset] = vwcFlush // Flush to AllNamespaces flushes all
	}
	putText(d[subNQN:subNQN+nqnLen], i.SubsystemNQN, 0)
	return b
}

// ParseIdentifyController parses the structure.
func ParseIdentifyController(b []byte) (i IdentifyController, err error) {
	if len(b) < IdentifyLen {
		return i, shorter("Identify Controller", len(b), IdentifyLen)
	}
	i.numbers(b, get8, get16, get32)
	i.Serial, i.Model, i.Firmware = text(b[4:24]), text(b[24:64]), text(b[64:72])
	i.VolatileCache = b[vwcOffset]&1 != 0
	i.SubsystemNQN = text(b[subNQN : subNQN+nqnLen])
	return i, nil
}

// grow appends n zeros to b, and returns them too.
func grow(b []byte, n int) (all, added []byte) {
	at := len(b)
	all = append(b, make([]byte, n)...)
	return all, all[at:]
}

// putText fills a field with a text, padded with a byte, or cut.
func putText(field []byte, s string, pad byte) {
	for i := copy(field, s); i < len(field); i++ {
		field[i] = pad
	}
}

// text returns the text of a field, without padding.
func text(field []byte) string {
	s, _, _ := strings.Cut(string(field), "\x00")
	return strings.TrimRight(s, " ")
}

// Values of IdentifyNamespace.
const (
	NamespaceShared     = 1 << 0 // NMIC: several controllers may have it
	NamespaceReadOnly   = 1 << 0 // Attributes
	NamespaceThin       = 1 << 0 // Features
	NamespaceOptimal    = 1 << 4 // Features: Granularity is valid
	DeallocatedAreZeros = 1 << 0 // Deallocated
	DeallocateByZeroes  = 1 << 3 // Deallocated: Write Zeroes may deallocate
)

// IdentifyNamespace is the namespace's data structure (NVMe 1.4 §5.15.2.1), with one LBA format.
type IdentifyNamespace struct {
	Size        uint64 // logical blocks
	Capacity    uint64
	Used        uint64
	Features    uint8
	NMIC        uint8
	Deallocated uint8 // DLFEAT
	Bytes       uint64
	Granularity uint16 // of writes and deallocations, blocks, 0's based
	Attributes  uint8
	NGUID       [16]byte
	EUI64       [8]byte
	BlockShift  uint8 // the block length is 1<<BlockShift bytes
}

// Append appends the structure, of IdentifyLen bytes.
func (i *IdentifyNamespace) Append(b []byte) []byte {
	b, d := grow(b, IdentifyLen)
	le.PutUint64(d[0:], i.Size)
	le.PutUint64(d[8:], i.Capacity)
	le.PutUint64(d[16:], i.Used)
	d[24], d[30], d[33] = i.Features, i.NMIC, i.Deallocated
	le.PutUint64(d[48:], i.Bytes)
	for at := 64; at < 72; at += 2 { // preferred granularity and alignment, of writes and of deallocations
		le.PutUint16(d[at:], i.Granularity)
	}
	d[99] = i.Attributes
	copy(d[104:], i.NGUID[:])
	copy(d[120:], i.EUI64[:])
	d[130] = i.BlockShift
	return b
}

// ParseIdentifyNamespace parses the structure. FLBAS selects the format. All zeros
// are the structure of an inactive namespace.
func ParseIdentifyNamespace(b []byte) (i IdentifyNamespace, err error) {
	if len(b) < IdentifyLen {
		return i, shorter("Identify Namespace", len(b), IdentifyLen)
	}
	i = IdentifyNamespace{
		Size: le.Uint64(b), Capacity: le.Uint64(b[8:]), Used: le.Uint64(b[16:]), Features: b[24], NMIC: b[30], Deallocated: b[33],
		Bytes: le.Uint64(b[48:]), Granularity: le.Uint16(b[64:]), Attributes: b[99], NGUID: [16]byte(b[104:]), EUI64: [8]byte(b[120:]),
	}
	flbas := b[26]
	format := int(flbas&0xf | flbas&0x60>>1)
	i.BlockShift = b[128+4*format+2]
	return i, nil
}

// IndependentNamespace is the part of a namespace's data that is the same for all I/O command sets
// (NVMe 2.0 §5.17.2.8).
type IndependentNamespace struct {
	Features   uint8
	NMIC       uint8
	Attributes uint8
	Ready      bool
}

// Append appends the structure, of IdentifyLen bytes.
func (i *IndependentNamespace) Append(b []byte) []byte {
	b, d := grow(b, IdentifyLen)
	d[0], d[1], d[8] = i.Features, i.NMIC, i.Attributes
	if i.Ready {
		d[14] = 1
	}
	return b
}

// ParseIndependentNamespace parses the structure.
func ParseIndependentNamespace(b []byte) (i IndependentNamespace, err error) {
	if len(b) < IdentifyLen {
		return i, shorter("independent Identify Namespace", len(b), IdentifyLen)
	}
	return IndependentNamespace{b[0], b[1], b[8], b[14]&1 != 0}, nil
}

// AppendNamespaceList appends a list of NSIDs, in ascending order, of IdentifyLen bytes. It has
// 1024 NSIDs at most (NVMe 1.4 §4.10).
func AppendNamespaceList(b []byte, nsids []uint32) []byte {
	b, d := grow(b, IdentifyLen)
	for i, id := range nsids[:min(len(nsids), IdentifyLen/4)] {
		le.PutUint32(d[4*i:], id)
	}
	return b
}

// ParseNamespaceList parses a list of NSIDs.
func ParseNamespaceList(b []byte) (nsids []uint32, err error) {
	if len(b) < IdentifyLen {
		return nil, shorter("namespace list", len(b), IdentifyLen)
	}
	for at := 0; at < IdentifyLen; at += 4 {
		id := le.Uint32(b[at:])
		if id == 0 {
			break
		}
		nsids = append(nsids, id)
	}
	return nsids, nil
}

// AppendControllerList appends a list of controller IDs, in ascending order, of IdentifyLen bytes.
// It has 2047 IDs at most (NVMe 1.4 §4.9).
func AppendControllerList(b []byte, ids []uint16) []byte {
	b, d := grow(b, IdentifyLen)
	ids = ids[:min(len(ids), IdentifyLen/2-1)]
	le.PutUint16(d, uint16(len(ids)))
	for i, id := range ids {
		le.PutUint16(d[2+2*i:], id)
	}
	return b
}

// Descriptors are the identifiers of a namespace (NVMe 1.4 §5.15.2.3).
type Descriptors struct {
	EUI64      [8]byte // zeros: none
	NGUID      [16]byte
	UUID       [16]byte
	CommandSet uint8 // 0: NVM
}

// Types of descriptors.
const (
	descriptorEUI64      = 1
	descriptorNGUID      = 2
	descriptorUUID       = 3
	descriptorCommandSet = 4
)

// Append appends the descriptors, of IdentifyLen bytes.
func (n *Descriptors) Append(b []byte) []byte {
	b, d := grow(b, IdentifyLen)
	at := 0
	put := func(kind byte, id []byte) {
		d[at], d[at+1] = kind, byte(len(id))
		at += 4 + copy(d[at+4:], id)
	}
	if n.EUI64 != [8]byte{} {
		put(descriptorEUI64, n.EUI64[:])
	}
	if n.NGUID != [16]byte{} {
		put(descriptorNGUID, n.NGUID[:])
	}
	if n.UUID != [16]byte{} {
		put(descriptorUUID, n.UUID[:])
	}
	put(descriptorCommandSet, []byte{n.CommandSet})
	return b
}

// ParseDescriptors parses the descriptors. It ignores those of unknown types or of wrong lengths.
func ParseDescriptors(b []byte) (n Descriptors, err error) {
	if len(b) < IdentifyLen {
		return n, shorter("namespace descriptors", len(b), IdentifyLen)
	}
	for b = b[:IdentifyLen]; len(b) >= 4 && b[1] != 0; {
		kind, length := b[0], int(b[1])
		if len(b) < 4+length {
			return n, shorter("namespace descriptor", len(b), 4+length)
		}
		id := b[4 : 4+length]
		switch {
		case kind == descriptorEUI64 && length == 8:
			n.EUI64 = [8]byte(id)
		case kind == descriptorNGUID && length == 16:
			n.NGUID = [16]byte(id)
		case kind == descriptorUUID && length == 16:
			n.UUID = [16]byte(id)
		case kind == descriptorCommandSet && length == 1:
			n.CommandSet = id[0]
		}
		b = b[4+length:]
	}
	return n, nil
}
