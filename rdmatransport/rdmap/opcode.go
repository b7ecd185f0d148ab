// Package rdmap encodes and parses the messages of the RDMA protocol, RFC 5040, with its
// extensions, RFC 7306: the control byte, the headers after DDP's, and Terminate with its codes. It
// is the highest layer of iWARP, for programs that write or read its streams, such as readers of
// captures, fuzzers and test benches of hardware.
//
// An [Opcode] has the properties of its messages, and its control byte is RsvdULP of the segments'
// headers (package ddp). Fields are big-endian on the wire, and values in host order in this
// package. What parses accepts any bytes; an error that the peer made is a [Cause].
//
// The package knows messages, but no streams. It checks no keys, and does not match responses with
// requests.
package rdmap

import "fmt"

// version is the RDMAP version in each control byte.
const version = 1

// Opcode is the type of an RDMA message.
type Opcode uint8

// The messages (RFC 5040 §4.1).
const (
	Write            Opcode = 0
	ReadRequest      Opcode = 1
	ReadResponse     Opcode = 2
	Send             Opcode = 3
	SendInvalidate   Opcode = 4
	SendSE           Opcode = 5 // with solicited event
	SendSEInvalidate Opcode = 6
	Terminate        Opcode = 7
	ImmediateData    Opcode = 8 // this and later ones: RFC 7306 §4.1
	ImmediateDataSE  Opcode = 9
	AtomicRequest    Opcode = 10
	AtomicResponse   Opcode = 11
	opcodes                 = 12
	maskOpcode              = 0x0f
	shiftVersion            = 6
)

// DDP queue numbers (RFC 5040 §4.1, RFC 7306 §4.1).
const (
	QueueSend           = 0 // SEND and immediate data
	QueueReadRequest    = 1 // read and atomic requests
	QueueTerminate      = 2
	QueueAtomicResponse = 3
	Queues              = 4 // number of queues
)

// Info describes the messages of an opcode (RFC 5040 §4.1, §4.2; RFC 7306 §4).
type Info struct {
	Name       string
	Tagged     bool
	Queue      uint32 // untagged only
	Payload    bool   // data of the ULP follows the DDP header
	HeaderLen  int    // of the RDMAP header after DDP's; a Terminate with quotes is longer
	Invalidate bool   // the DDP header has an STag to invalidate
	Solicited  bool   // the receiver gets an event
}

var infos = [opcodes]Info{
	Write:            {Name: "RDMA Write", Tagged: true, Payload: true},
	ReadRequest:      {Name: "RDMA Read Request", Queue: QueueReadRequest, HeaderLen: ReadRequestLen},
	ReadResponse:     {Name: "RDMA Read Response", Tagged: true, Payload: true},
	Send:             {Name: "Send", Payload: true},
	SendInvalidate:   {Name: "Send with Invalidate", Payload: true, Invalidate: true},
	SendSE:           {Name: "Send with SE", Payload: true, Solicited: true},
	SendSEInvalidate: {Name: "Send with SE and Invalidate", Payload: true, Invalidate: true, Solicited: true},
	Terminate:        {Name: "Terminate", Queue: QueueTerminate, HeaderLen: TerminateLen},
	ImmediateData:    {Name: "Immediate Data", HeaderLen: ImmediateLen},
	ImmediateDataSE:  {Name: "Immediate Data with SE", HeaderLen: ImmediateLen, Solicited: true},
	AtomicRequest:    {Name: "Atomic Request", Queue: QueueReadRequest, HeaderLen: AtomicRequestLen},
	AtomicResponse:   {Name: "Atomic Response", Queue: QueueAtomicResponse, HeaderLen: AtomicResponseLen},
}

// Known reports whether the RFCs define op.
func (op Opcode) Known() bool { return op < opcodes }

// Info returns the properties of op; they are empty if op is not Known.
func (op Opcode) Info() Info {
	if !op.Known() {
		return Info{}
	}
	return infos[op]
}

// String returns the message's name.
func (op Opcode) String() string {
	if !op.Known() {
		return fmt.Sprintf("opcode %#x", uint8(op))
	}
	return infos[op].Name
}

// Control returns the control byte of op, RsvdULP of the DDP header (RFC 5040 §4.1):
//
//	 7…6       5…4      3…0
//	version | reserved | opcode
func (op Opcode) Control() uint8 { return version<<shiftVersion | uint8(op)&maskOpcode }

// ParseControl parses a control byte; the reserved bits may have any value. The error is
// InvalidVersion or UnexpectedOpcode. op is valid even after an error.
func ParseControl(c uint8) (op Opcode, err error) {
	op = Opcode(c & maskOpcode)
	if c>>shiftVersion != version {
		return op, InvalidVersion
	}
	if !op.Known() {
		return op, UnexpectedOpcode
	}
	return op, nil
}

// CheckTagged returns UnexpectedOpcode unless messages of op are sent in tagged segments.
func (op Opcode) CheckTagged() error {
	if !op.Known() || !infos[op].Tagged {
		return UnexpectedOpcode
	}
	return nil
}

// CheckUntagged returns UnexpectedOpcode unless messages of op are sent in untagged segments of
// queue qn.
func (op Opcode) CheckUntagged(qn uint32) error {
	if !op.Known() || infos[op].Tagged || infos[op].Queue != qn {
		return UnexpectedOpcode
	}
	return nil
}
