// Package classify knows the packets of RoCE for a hub, a process that shares UDP port 4791 between
// others: it says which of them a datagram is for, by the destination QPN in its BTH (IBTA Vol 1
// §9.2), or for QP 1, the numbers in its MAD (§12.6).
//
// A MAD is for the process whose communication ID it calls the receiver's, a request (REQ,
// SIDR_REQ) for the one that serves its service ID, and a SIDR_REP for the one whose request ID it
// has. A REJ of somebody who gives up before he has got a REP names no ID of the receiver: it goes
// where his REQ went.
//
// For processes that died connections.go remembers which connections they had, as far as that can
// be seen in what their peers have sent, and speak.go ends those.
package classify

import (
	"math/rand/v2"

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
	switch qpn := destQPN(payload); {
	case qpn == 0: // subnet management, which RoCE does not have
		return stack.Target{}
	case qpn == mad.QPN:
		return c.classifyMAD(payload, d)
	case qpn == multicastQPN && d.Dst.IsMulticast():
		return stack.Target{Kind: stack.TargetGroup}
	case qpn == multicastQPN:
		return stack.Target{}
	default:
		return stack.Target{Kind: stack.TargetQPN, Number: qpn}
	}
}

// destQPN reads the destination QPN of a packet that has a whole BTH.
func destQPN(payload []byte) uint32 {
	return uint32(payload[5])<<16 | uint32(payload[6])<<8 | uint32(payload[7])
}

func (c *Classifier) classifyMAD(payload []byte, d *stack.Datagram) stack.Target {
	m, ok := parse(payload, d)
	if !ok {
		return stack.Target{}
	}
	to := c.target(&m, d)
	if c.intact(payload, d) {
		c.learn(&m, d)
	}
	return to
}

// target is whom a message is for.
func (c *Classifier) target(m *message, d *stack.Datagram) stack.Target {
	switch x := m.content.(type) {
	case *mad.REQ:
		return stack.Target{Kind: stack.TargetService, Service: x.ServiceID}
	case *mad.SIDRREQ:
		return stack.Target{Kind: stack.TargetService, Service: x.ServiceID}
	case *mad.REJ:
		asked, known := c.requests.of[m.request(d)]
		if gaveUp := m.remote == 0; gaveUp && known {
			return stack.Target{Kind: stack.TargetService, Service: asked.service}
		}
	}
	if m.remote == 0 {
		return stack.Target{}
	}
	return stack.Target{Kind: stack.TargetCommID, Number: m.remote}
}

// intact reports whether a datagram has the right ICRC. Of a MAD whose IPv4 identification was not
// seen, any identification is right: nothing is known of who sends MADs, so that each is a first
// packet in the sense of package ipid.
func (c *Classifier) intact(payload []byte, d *stack.Datagram) bool {
	if d.NoICRC {
		return true
	}
	const shortest = 20 + 8 // IPv4 and UDP
	if len(d.Header) < shortest || len(d.Header) > len(c.header) {
		return false
	}
	header := c.header[:copy(c.header[:], d.Header)]
	stack.PutLengths(header, len(payload))
	if d.IDGuessed {
		_, ok := wire.SolveID(header, payload)
		return ok
	}
	return wire.CheckICRC(header, payload)
}

// Verify implements stack.Classifier.
func (c *Classifier) Verify(payload []byte, d *stack.Datagram) bool {
	return wire.CheckICRC(d.Header, payload)
}

// Permits implements stack.Classifier.
func (c *Classifier) Permits(payload []byte, own stack.Numbers) bool {
	var pkt wire.Packet
	err := pkt.Parse(payload)
	toQP := pkt.DestQP > mad.QPN
	switch {
	case err == wire.ErrOpcode:
		return toQP // which is to refuse it
	case err != nil:
		return false
	case pkt.DestQP == mad.QPN:
		m, ok := parse(payload, &stack.Datagram{})
		claimsNone := m.local == 0
		return ok && (claimsNone || own.CommIDs.Contains(m.local))
	case pkt.Opcode.Transport() == wire.UD:
		return own.QPNs.Contains(pkt.DETH.SrcQP)
	}
	return toQP // a connection's: its QP knows whom it hears
}

// Refuse implements stack.Classifier.
func (c *Classifier) Refuse(payload []byte, d *stack.Datagram, send stack.SendFunc) {
	m, ok := parse(payload, d)
	if !ok || c.leases.lives(m.remote) || !c.intact(payload, d) {
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

// randomTID is a transaction ID. It need not be secret: the message has two communication IDs that
// are.
func randomTID() uint64 { return rand.Uint64() }
