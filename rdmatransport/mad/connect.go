package mad

// Lengths of the messages' private data, in bytes (IBTA Vol 1 §12.6).
const (
	REQPrivateLen     = 92
	MRAPrivateLen     = 222
	REJPrivateLen     = 148
	REPPrivateLen     = 196
	RTUPrivateLen     = 224
	DREQPrivateLen    = 220
	DREPPrivateLen    = 224
	SIDRREQPrivateLen = 216
	SIDRREPPrivateLen = 136
	LAPPrivateLen     = 168
	APRPrivateLen     = 148
	infoLen           = 72 // additional information of REJ, SIDR_REP and APR
)

// Values of REQ.ServiceType and REQ.ExtendedType (IBTA Vol 1 §12.6.5, annex A14).
const (
	ServiceRC       = 0
	ServiceUC       = 1
	ServiceExtended = 3 // that of ExtendedType

	ExtendedXRC = 1 // the ExtendedType of XRC
)

// Path is a network path with the addresses of both ends, in REQ and LAP.
type Path struct {
	LocalLID, RemoteLID uint16   // no meaning on RoCE
	LocalGID, RemoteGID [16]byte // of the sender of the message, and of its receiver
	FlowLabel           uint32   // 20 bits
	Rate                uint8    // 6 bits, a code (static rate)
	TrafficClass        uint8
	HopLimit            uint8
	SL                  uint8 // 4 bits
	SubnetLocal         bool
	AckTimeout          uint8 // 5 bits, 4.096 µs × 2^n
}

// REQ requests a connection (IBTA Vol 1 §12.6.5, table 106).
type REQ struct {
	LocalCommID           uint32 // chosen by the sender
	VendorID              uint32 // 24 bits
	ServiceID             uint64 // that of a listener; see [ServiceID]
	LocalCAGUID           uint64
	LocalQKey             uint32 // of datagram services only
	LocalQPN              uint32 // 24 bits
	ResponderResources    uint8  // READs and atomics that the sender answers at a time
	LocalEECN             uint32 // 24 bits
	InitiatorDepth        uint8  // READs and atomics that the sender requests at a time
	RemoteEECN            uint32 // 24 bits
	RemoteResponseTimeout uint8  // 5 bits, 4.096 µs × 2^n: for the receiver's answer
	ServiceType           uint8  // 2 bits: [ServiceRC] and so on
	FlowControl           bool
	StartingPSN           uint32 // 24 bits: of the receiver's first packet
	LocalResponseTimeout  uint8  // 5 bits: for the sender's answers
	RetryCount            uint8  // 3 bits
	PKey                  uint16
	MTU                   uint8 // 4 bits, a code: 1 is 256 bytes, 5 is 4096
	RDCExists             bool
	RNRRetryCount         uint8 // 3 bits
	MaxCMRetries          uint8 // 4 bits
	SRQ                   bool
	ExtendedType          uint8 // 3 bits: [ExtendedXRC]
	Primary, Alternate    Path
	PrivateData           []byte
}

// Attr implements [Message].
func (*REQ) Attr() Attr { return AttrREQ }

// IDs implements [Message].
func (m *REQ) IDs() (local, remote uint32) { return m.LocalCommID, 0 }

func (m *REQ) fields(c *coder) {
	field(c, 0, 0, 32, &m.LocalCommID)
	field(c, 5, 0, 24, &m.VendorID)
	c.u64(8, &m.ServiceID)
	c.u64(16, &m.LocalCAGUID)
	field(c, 28, 0, 32, &m.LocalQKey)
	field(c, 32, 0, 24, &m.LocalQPN)
	field(c, 35, 0, 8, &m.ResponderResources)
	field(c, 36, 0, 24, &m.LocalEECN)
	field(c, 39, 0, 8, &m.InitiatorDepth)
	field(c, 40, 0, 24, &m.RemoteEECN)
	field(c, 43, 0, 5, &m.RemoteResponseTimeout)
	field(c, 43, 5, 2, &m.ServiceType)
	flag(c, 43, 7, &m.FlowControl)
	field(c, 44, 0, 24, &m.StartingPSN)
	field(c, 47, 0, 5, &m.LocalResponseTimeout)
	field(c, 47, 5, 3, &m.RetryCount)
	field(c, 48, 0, 16, &m.PKey)
	field(c, 50, 0, 4, &m.MTU)
	flag(c, 50, 4, &m.RDCExists)
	field(c, 50, 5, 3, &m.RNRRetryCount)
	field(c, 51, 0, 4, &m.MaxCMRetries)
	flag(c, 51, 4, &m.SRQ)
	field(c, 51, 5, 3, &m.ExtendedType)
	m.Primary.fields(c, 52)
	m.Alternate.fields(c, 96)
	c.bytes(140, REQPrivateLen, &m.PrivateData)
}

// fields codes the 44 bytes from off on.
func (p *Path) fields(c *coder, off int) {
	field(c, off, 0, 16, &p.LocalLID)
	field(c, off+2, 0, 16, &p.RemoteLID)
	c.gid(off+4, &p.LocalGID)
	c.gid(off+20, &p.RemoteGID)
	field(c, off+36, 0, 20, &p.FlowLabel)
	field(c, off+39, 2, 6, &p.Rate)
	field(c, off+40, 0, 8, &p.TrafficClass)
	field(c, off+41, 0, 8, &p.HopLimit)
	field(c, off+42, 0, 4, &p.SL)
	flag(c, off+42, 4, &p.SubnetLocal)
	field(c, off+43, 0, 5, &p.AckTimeout)
}

// Answered is the message that a MRA or REJ refers to.
type Answered uint8

// The messages; both have 2 bits for them.
const (
	AnsweredREQ   Answered = 0
	AnsweredREP   Answered = 1
	AnsweredOther Answered = 2 // MRA: a LAP; REJ: no message
)

// MRA reports that a message arrived and its answer takes longer (IBTA Vol 1 §12.6.6, table 107).
type MRA struct {
	LocalCommID, RemoteCommID uint32
	About                     Answered // 2 bits
	ServiceTimeout            uint8    // 5 bits, 4.096 µs × 2^n
	PrivateData               []byte
}

// Attr implements [Message].
func (*MRA) Attr() Attr { return AttrMRA }

// IDs implements [Message].
func (m *MRA) IDs() (local, remote uint32) { return m.LocalCommID, m.RemoteCommID }

func (m *MRA) fields(c *coder) {
	commIDs(c, &m.LocalCommID, &m.RemoteCommID)
	field(c, 8, 0, 2, &m.About)
	field(c, 9, 0, 5, &m.ServiceTimeout)
	c.bytes(10, MRAPrivateLen, &m.PrivateData)
}

// commIDs codes the sender's and the receiver's communication IDs, as in all messages except REQ
// and SIDR.
func commIDs(c *coder, local, remote *uint32) {
	field(c, 0, 0, 32, local)
	field(c, 4, 0, 32, remote)
}

// Reason is the reason of a REJ (IBTA Vol 1 §12.6.7.2).
type Reason uint16

// Reasons. Others have a number in the standard, and no name here.
const (
	NoQP                 Reason = 1
	NoResources          Reason = 3
	Timeout              Reason = 4
	Unsupported          Reason = 5
	InvalidCommID        Reason = 6
	InvalidServiceID     Reason = 8
	InvalidTransportType Reason = 9
	StaleConnection      Reason = 10
	InvalidGID           Reason = 12
	InvalidMTU           Reason = 26
	ConsumerDefined      Reason = 28
)

// REJ rejects a connection, or ends it during the set-up (IBTA Vol 1 §12.6.7, table 108).
type REJ struct {
	LocalCommID, RemoteCommID uint32
	About                     Answered // 2 bits
	InfoLen                   uint8    // 7 bits: valid bytes of Info
	Reason                    Reason
	Info                      []byte // 72 bytes, depends on Reason
	PrivateData               []byte
}

// Attr implements [Message].
func (*REJ) Attr() Attr { return AttrREJ }

// IDs implements [Message].
func (m *REJ) IDs() (local, remote uint32) { return m.LocalCommID, m.RemoteCommID }

func (m *REJ) fields(c *coder) {
	commIDs(c, &m.LocalCommID, &m.RemoteCommID)
	field(c, 8, 0, 2, &m.About)
	field(c, 9, 0, 7, &m.InfoLen)
	field(c, 10, 0, 16, &m.Reason)
	c.bytes(12, infoLen, &m.Info)
	c.bytes(84, REJPrivateLen, &m.PrivateData)
}

// REP accepts a connection (IBTA Vol 1 §12.6.8, table 110).
type REP struct {
	LocalCommID, RemoteCommID uint32
	LocalQKey                 uint32
	LocalQPN                  uint32 // 24 bits
	VendorIDHigh              uint8
	LocalEECN                 uint32 // 24 bits; for XRC instead of LocalQPN
	VendorIDMid               uint8
	StartingPSN               uint32 // 24 bits: of the receiver's first packet
	VendorIDLow               uint8
	ResponderResources        uint8
	InitiatorDepth            uint8
	TargetAckDelay            uint8 // 5 bits, 4.096 µs × 2^n
	FailoverAccepted          uint8 // 2 bits
	FlowControl               bool
	RNRRetryCount             uint8 // 3 bits
	SRQ                       bool
	LocalCAGUID               uint64
	PrivateData               []byte
}

// Attr implements [Message].
func (*REP) Attr() Attr { return AttrREP }

// IDs implements [Message].
func (m *REP) IDs() (local, remote uint32) { return m.LocalCommID, m.RemoteCommID }

func (m *REP) fields(c *coder) {
	commIDs(c, &m.LocalCommID, &m.RemoteCommID)
	field(c, 8, 0, 32, &m.LocalQKey)
	field(c, 12, 0, 24, &m.LocalQPN)
	field(c, 15, 0, 8, &m.VendorIDHigh)
	field(c, 16, 0, 24, &m.LocalEECN)
	field(c, 19, 0, 8, &m.VendorIDMid)
	field(c, 20, 0, 24, &m.StartingPSN)
	field(c, 23, 0, 8, &m.VendorIDLow)
	field(c, 24, 0, 8, &m.ResponderResources)
	field(c, 25, 0, 8, &m.InitiatorDepth)
	field(c, 26, 0, 5, &m.TargetAckDelay)
	field(c, 26, 5, 2, &m.FailoverAccepted)
	flag(c, 26, 7, &m.FlowControl)
	field(c, 27, 0, 3, &m.RNRRetryCount)
	flag(c, 27, 3, &m.SRQ)
	c.u64(28, &m.LocalCAGUID)
	c.bytes(36, REPPrivateLen, &m.PrivateData)
}

// RTU answers a REP: ready to use (IBTA Vol 1 §12.6.9, table 111).
type RTU struct {
	LocalCommID, RemoteCommID uint32
	PrivateData               []byte
}

// Attr implements [Message].
func (*RTU) Attr() Attr { return AttrRTU }

// IDs implements [Message].
func (m *RTU) IDs() (local, remote uint32) { return m.LocalCommID, m.RemoteCommID }

func (m *RTU) fields(c *coder) {
	commIDs(c, &m.LocalCommID, &m.RemoteCommID)
	c.bytes(8, RTUPrivateLen, &m.PrivateData)
}

// DREQ requests the end of a connection (IBTA Vol 1 §12.6.10, table 112).
type DREQ struct {
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 uint32 // 24 bits: the receiver's QP
	PrivateData               []byte
}

// Attr implements [Message].
func (*DREQ) Attr() Attr { return AttrDREQ }

// IDs implements [Message].
func (m *DREQ) IDs() (local, remote uint32) { return m.LocalCommID, m.RemoteCommID }

func (m *DREQ) fields(c *coder) {
	commIDs(c, &m.LocalCommID, &m.RemoteCommID)
	field(c, 8, 0, 24, &m.RemoteQPN)
	c.bytes(12, DREQPrivateLen, &m.PrivateData)
}

// DREP answers a DREQ (IBTA Vol 1 §12.6.11, table 113).
type DREP struct {
	LocalCommID, RemoteCommID uint32
	PrivateData               []byte
}

// Attr implements [Message].
func (*DREP) Attr() Attr { return AttrDREP }

// IDs implements [Message].
func (m *DREP) IDs() (local, remote uint32) { return m.LocalCommID, m.RemoteCommID }

func (m *DREP) fields(c *coder) {
	commIDs(c, &m.LocalCommID, &m.RemoteCommID)
	c.bytes(8, DREPPrivateLen, &m.PrivateData)
}
