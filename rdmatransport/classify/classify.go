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
	"github.com/softrnic/softrnic/stack/hub"
)

const (
	multicastQPN = 1<<24 - 1
	defaultPKey  = 0xffff
)

type classifier struct {
	leases   leases
	requests requests
	notifier notifier
	header   [40 + 8]byte // of the current datagram
}

// New returns the classifier that a hub of the package stack/hub needs. It stores the last 65,536
// connections of each process and 16,384 requests of peers.
func New() hub.Classifier { return &classifier{requests: requests{of: map[request]*pendingREQ{}}} }

// Classify implements hub.Classifier.
func (c *classifier) Classify(payload []byte, d *stack.Datagram) hub.Target {
	if len(payload) < wire.BTHLen+wire.ICRCLen {
		return hub.Target{}
	}
	switch qpn := destQPN(payload); {
	case qpn == 0: // subnet management, which RoCE does not have
		return hub.Target{}
	case qpn == mad.QPN:
		return c.classifyMAD(payload, d)
	case qpn == multicastQPN && d.Dst.IsMulticast():
		return hub.Target{Kind: hub.TargetGroup}
	case qpn == multicastQPN:
		return hub.Target{}
	default:
		return hub.Target{Kind: hub.TargetQPN, Number: qpn}
	}
}

// destQPN returns the destination QPN of a packet with a complete BTH.
func destQPN(payload []byte) uint32 {
	return uint32(payload[5])<<16 | uint32(payload[6])<<8 | uint32(payload[7])
}

func (c *classifier) classifyMAD(payload []byte, d *stack.Datagram) hub.Target {
	m, ok := parse(payload, d)
	if !ok {
		return hub.Target{}
	}
	to := c.target(&m, d)
	if c.intact(payload, d) {
		c.learn(&m, d)
	}
	return to
}

// target returns the destination of a message.
func (c *classifier) target(m *message, d *stack.Datagram) hub.Target {
	switch x := m.content.(type) {
	case *mad.REQ:
		return hub.Target{Kind: hub.TargetService, Service: x.ServiceID}
	case *mad.SIDRREQ:
		return hub.Target{Kind: hub.TargetService, Service: x.ServiceID}
	case *mad.REJ:
		asked, known := c.requests.of[m.request(d)]
		if gaveUp := m.remote == 0; gaveUp && known {
			return hub.Target{Kind: hub.TargetService, Service: asked.service}
		}
	}
	if m.remote == 0 {
		return hub.Target{}
	}
	return hub.Target{Kind: hub.TargetCommID, Number: m.remote}
}

// intact reports whether a datagram has the right ICRC. If the IPv4 identification of a MAD is
// unknown, any matching identification is accepted. Nothing is known of the sender, so each MAD is
// a first packet in the sense of package ipid.
func (c *classifier) intact(payload []byte, d *stack.Datagram) bool {
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

// Verify implements hub.Classifier. A FLUSH is left to its process, which may expect the ICRC of
// Linux's rxe.
func (c *classifier) Verify(payload []byte, d *stack.Datagram) bool {
	return len(payload) > 0 && wire.Opcode(payload[0]) != wire.RCFlush && wire.CheckICRC(d.Header, payload)
}

// Permits implements hub.Classifier.
func (c *classifier) Permits(payload []byte, own stack.Numbers) bool {
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

// Refuse implements hub.Classifier.
func (c *classifier) Refuse(payload []byte, d *stack.Datagram, send hub.SendFunc) {
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
