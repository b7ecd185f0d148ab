package mad

// SIDRREQ requests the QP of a service ID (IBTA Vol 1 §12.11.1, table 119).
type SIDRREQ struct {
	RequestID   uint32 // the same in the answer
	PKey        uint16
	ServiceID   uint64
	PrivateData []byte
}

// Attr implements [Message].
func (*SIDRREQ) Attr() Attr { return AttrSIDRREQ }

// IDs implements [Message].
func (m *SIDRREQ) IDs() (local, remote uint32) { return m.RequestID, 0 }

func (m *SIDRREQ) fields(c *coder) {
	field(c, 0, 0, 32, &m.RequestID)
	field(c, 4, 0, 16, &m.PKey)
	c.u64(8, &m.ServiceID)
	c.bytes(16, SIDRREQPrivateLen, &m.PrivateData)
}

// SIDRStatus is the status of a SIDR_REP (IBTA Vol 1 §12.11.2).
type SIDRStatus uint8

// Results of a SIDR_REQ.
const (
	SIDRSuccess     SIDRStatus = 0
	SIDRUnsupported SIDRStatus = 1 // no listener
	SIDRReject      SIDRStatus = 2
)

// SIDRREP answers a SIDR_REQ (IBTA Vol 1 §12.11.2, table 120).
type SIDRREP struct {
	RequestID    uint32
	Status       SIDRStatus
	InfoLen      uint8 // valid bytes of Info
	VendorIDHigh uint16
	QPN          uint32 // 24 bits
	VendorIDLow  uint8
	ServiceID    uint64
	QKey         uint32
	Info         []byte // 72 bytes
	PrivateData  []byte
}

// Attr implements [Message].
func (*SIDRREP) Attr() Attr { return AttrSIDRREP }

// IDs implements [Message].
func (m *SIDRREP) IDs() (local, remote uint32) { return 0, m.RequestID }

func (m *SIDRREP) fields(c *coder) {
	field(c, 0, 0, 32, &m.RequestID)
	field(c, 4, 0, 8, &m.Status)
	field(c, 5, 0, 8, &m.InfoLen)
	field(c, 6, 0, 16, &m.VendorIDHigh)
	field(c, 8, 0, 24, &m.QPN)
	field(c, 11, 0, 8, &m.VendorIDLow)
	c.u64(12, &m.ServiceID)
	field(c, 20, 0, 32, &m.QKey)
	c.bytes(24, infoLen, &m.Info)
	c.bytes(96, SIDRREPPrivateLen, &m.PrivateData)
}
