// Package classify knows the packets of RoCE for a hub, a process that shares UDP port 4791 between others: it says which of
// them a datagram is for, by the destination QPN in its BTH (IBTA Vol 1 §9.2), or for QP 1, the numbers in its MAD (§12.6).
//
// A MAD is for the process whose communication ID it calls the receiver's, a request (REQ, SIDR_REQ) for the one that serves
// its service ID, and a SIDR_REP for the one whose request ID it has. A REJ of somebody who gives up before he has got a REP
// names no ID of the receiver: it goes where his REQ went.
//
// For processes that died connections.go remembers which connections they had, as far as that can be seen in what their peers
// have sent, and speak.go ends those.
package classify

import (
	"math/rand/v2"
	"net/netip"

	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/stack"
)

const (
	multicastQPN = 1<<24 - 1
	defaultPKey  = 0xffff
)

// Classifier implements stack.Classifier.
type Classifier struct {
	leases   leases
	requests requests
	speech   speech
	header   [40 + 8]byte // of the datagram that is looked at
}

var _ stack.Classifier = (*Classifier)(nil)

// New makes a classifier that knows of no process.
func New() *Classifier { return &Classifier{requests: requests{of: map[request]*asked{}}} }

// Classify implements stack.Classifier.
func (c *Classifier) Classify(payload []byte, d *stack.Datagram) stack.Target {
	if len(payload) < wire.BTHLen+wire.ICRCLen {
		return stack.Target{}
	}
	switch qpn := uint32(payload[5])<<16 | uint32(payload[6])<<8 | uint32(payload[7]); qpn {
	case 0:
		return stack.Target{}
	case mad.QPN:
		return c.classifyMAD(payload, d)
	case multicastQPN:
		if !d.Dst.IsMulticast() {
			return stack.Target{}
		}
		return stack.Target{Kind: stack.TargetGroup}
	default:
		return stack.Target{Kind: stack.TargetQPN, Number: qpn}
	}
}

func (c *Classifier) classifyMAD(payload []byte, d *stack.Datagram) stack.Target {
	m, ok := parse(payload, d)
	if !ok {
		return stack.Target{}
	}
	to := c.target(&m, d)
	if c.right(payload, d) {
		c.learn(&m, d)
	}
	return to
}

// message is what a MAD of connection management says.
type message struct {
	tid     uint64
	content mad.Message
	// local and remote are the communication IDs, or the request ID of SIDR, of who sent it and of who receives it; 0 if it has
	// none.
	local, remote uint32
	service       uint64 // of REQ and SIDR_REQ
}

// parse reads a packet to QP 1. ok is false if it is no message to one host.
func parse(payload []byte, d *stack.Datagram) (m message, ok bool) {
	var pkt wire.Packet
	if pkt.Parse(payload) != nil || pkt.Opcode != wire.UDSendOnly || pkt.DETH.QKey != mad.QKey || pkt.DETH.SrcQP != mad.QPN ||
		pkt.PKey&0x7fff != defaultPKey&0x7fff || d.V1 || d.Dst.IsMulticast() {
		return m, false
	}
	h, data, err := mad.Parse(pkt.Payload)
	if err != nil {
		return m, false
	}
	m.tid = h.TID
	switch h.Attr {
	case mad.AttrREQ:
		x := new(mad.REQ)
		mad.Decode(data, x)
		m.content, m.local, m.service = x, x.LocalCommID, x.ServiceID
	case mad.AttrMRA:
		x := new(mad.MRA)
		mad.Decode(data, x)
		m.content, m.local, m.remote = x, x.LocalCommID, x.RemoteCommID
	case mad.AttrREJ:
		x := new(mad.REJ)
		mad.Decode(data, x)
		m.content, m.local, m.remote = x, x.LocalCommID, x.RemoteCommID
	case mad.AttrREP:
		x := new(mad.REP)
		mad.Decode(data, x)
		m.content, m.local, m.remote = x, x.LocalCommID, x.RemoteCommID
	case mad.AttrRTU:
		x := new(mad.RTU)
		mad.Decode(data, x)
		m.content, m.local, m.remote = x, x.LocalCommID, x.RemoteCommID
	case mad.AttrDREQ:
		x := new(mad.DREQ)
		mad.Decode(data, x)
		m.content, m.local, m.remote = x, x.LocalCommID, x.RemoteCommID
	case mad.AttrDREP:
		x := new(mad.DREP)
		mad.Decode(data, x)
		m.content, m.local, m.remote = x, x.LocalCommID, x.RemoteCommID
	case mad.AttrSIDRREQ:
		x := new(mad.SIDRREQ)
		mad.Decode(data, x)
		m.content, m.local, m.service = x, x.RequestID, x.ServiceID
	case mad.AttrSIDRREP:
		x := new(mad.SIDRREP)
		mad.Decode(data, x)
		m.content, m.remote = x, x.RequestID
	case mad.AttrLAP:
		x := new(mad.LAP)
		mad.Decode(data, x)
		m.content, m.local, m.remote = x, x.LocalCommID, x.RemoteCommID
	case mad.AttrAPR:
		x := new(mad.APR)
		mad.Decode(data, x)
		m.content, m.local, m.remote = x, x.LocalCommID, x.RemoteCommID
	default:
		return m, false
	}
	return m, true
}

// target is whom a message is for.
func (c *Classifier) target(m *message, d *stack.Datagram) stack.Target {
	switch m.content.(type) {
	case *mad.REQ, *mad.SIDRREQ:
		return stack.Target{Kind: stack.TargetService, Service: m.service}
	case *mad.REJ:
		if asked := c.requests.of[request{d.Dst, d.Src, m.local}]; m.remote == 0 && asked != nil {
			return stack.Target{Kind: stack.TargetService, Service: asked.service}
		}
	}
	if m.remote == 0 {
		return stack.Target{}
	}
	return stack.Target{Kind: stack.TargetCommID, Number: m.remote}
}

// right tells whether the ICRC of a datagram is. Of a MAD whose IPv4 identification was not seen, any identification is right:
// nothing is known of who sends MADs, so that each is a first packet in the sense of package ipid.
func (c *Classifier) right(payload []byte, d *stack.Datagram) bool {
	if d.NoICRC {
		return true
	}
	header := c.header[:copy(c.header[:], d.Header)]
	if len(header) != len(d.Header) || len(header) < 20+8 {
		return false
	}
	stack.PutLengths(header, len(payload))
	if d.IDGuessed {
		_, ok := wire.SolveID(header, payload)
		return ok
	}
	return wire.CheckICRC(header, payload)
}

// Permits implements stack.Classifier.
func (c *Classifier) Permits(payload []byte, own stack.Numbers) bool {
	var pkt wire.Packet
	err := pkt.Parse(payload)
	switch {
	case err == wire.ErrOpcode:
		return pkt.DestQP > mad.QPN // the connection's peer is to refuse it
	case err != nil:
		return false
	case pkt.DestQP == mad.QPN:
		m, ok := parse(payload, &stack.Datagram{})
		return ok && (m.local == 0 || own.CommIDs.Contains(m.local))
	case pkt.Opcode.Transport() == wire.UD:
		return own.QPNs.Contains(pkt.DETH.SrcQP)
	}
	return pkt.DestQP > mad.QPN
}

// Refuse implements stack.Classifier.
func (c *Classifier) Refuse(payload []byte, d *stack.Datagram, send stack.SendFunc) {
	m, ok := parse(payload, d)
	if !ok || c.leases.lives(m.remote) || !c.right(payload, d) {
		return
	}
	var answer mad.Message
	switch x := m.content.(type) {
	case *mad.REQ:
		answer = &mad.REJ{RemoteCommID: x.LocalCommID, About: mad.AnsweredREQ, Reason: mad.InvalidServiceID}
	case *mad.SIDRREQ:
		answer = &mad.SIDRREP{RequestID: x.RequestID, ServiceID: x.ServiceID, Status: mad.SIDRUnsupported}
	case *mad.REP:
		answer = &mad.REJ{LocalCommID: m.remote, RemoteCommID: m.local, About: mad.AnsweredREP, Reason: mad.InvalidCommID}
		c.forget(&m, d)
	case *mad.DREQ:
		answer = &mad.DREP{LocalCommID: m.remote, RemoteCommID: m.local}
	case *mad.LAP:
		answer = &mad.APR{LocalCommID: m.remote, RemoteCommID: m.local, Status: mad.APRInvalidCommID}
	default:
		return
	}
	way := stack.PathAttr{Src: d.Dst, Dst: d.Src, TrafficClass: d.TrafficClass, Priority: uint8(d.TCI >> 13)}
	c.speech.say(send, way, m.tid, answer)
}

// request names a REQ: who is asked, who asks, and the communication ID of who asks.
type request struct {
	asked, asking netip.Addr
	id            uint32
}

// randomTID is a transaction ID. It need not be secret: the message has two communication IDs that are.
func randomTID() uint64 { return rand.Uint64() }
