package mad

// LAP requests an alternate path (IBTA Vol 1 §12.8.1, table 115).
type LAP struct {
	LocalCommID, RemoteCommID uint32
	RemoteQPN                 uint32 // 24 bits: the receiver's QP
	RemoteResponseTimeout     uint8  // 5 bits
	Alternate                 Path
	PrivateData               []byte
}

// Attr implements [Message].
func (*LAP) Attr() Attr { return AttrLAP }

// IDs implements [Message].
func (m *LAP) IDs() (local, remote uint32) { return m.LocalCommID, m.RemoteCommID }

func (m *LAP) fields(c *coder) {
	commIDs(c, &m.LocalCommID, &m.RemoteCommID)
	field(c, 12, 0, 24, &m.RemoteQPN)
	field(c, 15, 0, 5, &m.RemoteResponseTimeout)
	p := &m.Alternate // in another order than in REQ
	field(c, 20, 0, 16, &p.LocalLID)
	field(c, 22, 0, 16, &p.RemoteLID)
	c.gid(24, &p.LocalGID)
	c.gid(40, &p.RemoteGID)
	field(c, 56, 0, 20, &p.FlowLabel)
	field(c, 59, 0, 8, &p.TrafficClass)
	field(c, 60, 0, 8, &p.HopLimit)
	field(c, 61, 2, 6, &p.Rate)
	field(c, 62, 0, 4, &p.SL)
	flag(c, 62, 4, &p.SubnetLocal)
	field(c, 63, 0, 5, &p.AckTimeout)
	c.bytes(64, LAPPrivateLen, &m.PrivateData)
}

// APRStatus is the status of an APR (IBTA Vol 1 §12.8.2).
type APRStatus uint8

// Reasons for which there is no alternate path.
const (
	APRInvalidCommID APRStatus = 1
	APRUnsupported   APRStatus = 2 // no alternate paths
)

// APR answers a LAP (IBTA Vol 1 §12.8.2, table 116).
type APR struct {
	LocalCommID, RemoteCommID uint32
	InfoLen                   uint8 // valid bytes of Info
	Status                    APRStatus
	Info                      []byte // 72 bytes
	PrivateData               []byte
}

// Attr implements [Message].
func (*APR) Attr() Attr { return AttrAPR }

// IDs implements [Message].
func (m *APR) IDs() (local, remote uint32) { return m.LocalCommID, m.RemoteCommID }

func (m *APR) fields(c *coder) {
	commIDs(c, &m.LocalCommID, &m.RemoteCommID)
	field(c, 8, 0, 8, &m.InfoLen)
	field(c, 9, 0, 8, &m.Status)
	c.bytes(12, infoLen, &m.Info)
	c.bytes(84, APRPrivateLen, &m.PrivateData)
}
