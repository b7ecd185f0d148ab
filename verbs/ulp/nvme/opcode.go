package nvme

import "fmt"

// Opcode is the operation of a command. Its meaning depends on the queue: Admin queues and I/O
// queues have different operations, and Fabrics is valid on both.
type Opcode uint8

// Fabrics is the opcode of all Fabrics commands, whose FabricsType tells which (NVMe-oF 1.1 §3).
const Fabrics Opcode = 0x7f

// Opcodes of Admin commands (NVMe 1.4 §5).
const (
	GetLogPage        Opcode = 0x02
	Identify          Opcode = 0x06
	Abort             Opcode = 0x08
	SetFeatures       Opcode = 0x09
	GetFeatures       Opcode = 0x0a
	AsyncEventRequest Opcode = 0x0c
	KeepAlive         Opcode = 0x18
)

// Opcodes of I/O commands of the NVM command set (NVMe 1.4 §6).
const (
	Flush             Opcode = 0x00
	Write             Opcode = 0x01
	Read              Opcode = 0x02
	Compare           Opcode = 0x05
	WriteZeroes       Opcode = 0x08
	DatasetManagement Opcode = 0x09
)

var (
	adminOpcodes = map[Opcode]string{GetLogPage: "Get Log Page", Identify: "Identify", Abort: "Abort", SetFeatures: "Set Features",
		GetFeatures: "Get Features", AsyncEventRequest: "Asynchronous Event Request", KeepAlive: "Keep Alive"}
	ioOpcodes = map[Opcode]string{Flush: "Flush", Write: "Write", Read: "Read", Compare: "Compare", WriteZeroes: "Write Zeroes",
		DatasetManagement: "Dataset Management"}
)

// Name returns the specification's name of an opcode on an Admin queue or an I/O queue.
func (o Opcode) Name(admin bool) string {
	names := ioOpcodes
	if admin {
		names = adminOpcodes
	}
	if o == Fabrics {
		return "Fabrics"
	}
	if name := names[o]; name != "" {
		return name
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// FabricsType is the operation of a Fabrics command (NVMe-oF 1.1 §3).
type FabricsType uint8

const (
	PropertySet           FabricsType = 0x00
	Connect               FabricsType = 0x01
	PropertyGet           FabricsType = 0x04
	AuthenticationSend    FabricsType = 0x05
	AuthenticationReceive FabricsType = 0x06
	Disconnect            FabricsType = 0x08
)

var fabricsTypes = map[FabricsType]string{PropertySet: "Property Set", Connect: "Connect", PropertyGet: "Property Get",
	AuthenticationSend: "Authentication Send", AuthenticationReceive: "Authentication Receive", Disconnect: "Disconnect"}

// String returns the specification's name.
func (t FabricsType) String() string {
	if name := fabricsTypes[t]; name != "" {
		return name
	}
	return fmt.Sprintf("Fabrics type %#02x", uint8(t))
}
