// Package classify classifies RoCE packets for a hub, a process that shares UDP port 4791 between
// other processes. It finds the process of each datagram by the destination QPN in its BTH (IBTA
// Vol 1 §9.2), or for QP 1 by the numbers in its MAD (§12.6).
//
// A MAD belongs to the process with the receiver's communication ID in it. A request (REQ,
// SIDR_REQ) belongs to the process with its service ID, and a SIDR_REP to that with its request ID.
// The REJ of a peer that gives up before it received a REP has no ID of the receiver. It goes to
// the process of the REQ.
//
// connections.go tracks the connections of each process that packets of their peers show. When a
// process dies, notify.go ends its connections.
package classify

import (
	"math/rand/v2"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
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
	notifier notifier
	header   [40 + 8]byte // of the current datagram
}

var _ stack.Classifier = (*Classifier)(nil)

// New returns a classifier without processes.
func New() *Classifier { return &Classifier{requests: requests{of: map[request]*pendingREQ{}}} }

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

// destQPN returns the destination QPN of a packet with a complete BTH.
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

// target returns the destination of a message.
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

// intact reports whether a datagram has the right ICRC. If the IPv4 identification of a MAD is
// unknown, any matching identification is accepted. Nothing is known of the sender, so each MAD is
// a first packet in the sense of package ipid.
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
		return toQP // the QP refuses it
	case err != nil:
		return false
	case pkt.DestQP == mad.QPN:
		m, ok := parse(payload, &stack.Datagram{})
		claimsNone := m.local == 0
		return ok && (claimsNone || own.CommIDs.Contains(m.local))
	case pkt.Opcode.Transport() == wire.UD:
		return own.QPNs.Contains(pkt.DETH.SrcQP)
	}
	return toQP // of a connection: its QP checks the peer
}

// Refuse implements stack.Classifier.
func (c *Classifier) Refuse(payload []byte, d *stack.Datagram, send stack.SendFunc) {
	m, ok := parse(payload, d)
	if !ok || c.leases.alive(m.remote) || !c.intact(payload, d) {
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
	path := stack.PathAttr{Src: d.Dst, Dst: d.Src, TrafficClass: d.TrafficClass, Priority: uint8(d.TCI >> 13)}
	c.notifier.send(send, path, m.tid, answer)
}

// randomTID returns a transaction ID. It need not be secret, because the two communication IDs in
// the message are.
func randomTID() uint64 { return rand.Uint64() }
