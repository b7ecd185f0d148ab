package rocetransport

import (
	"sync/atomic"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/cm"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
)

// GSI is the general services QP (QP 1) of each port, which accepts UD SENDs of one MAD (IBTA Vol 1
// §13.5.2).
type GSI struct {
	e    *Engine
	recv atomic.Pointer[func(*cm.Datagram)]
	psn  atomic.Uint32
}

var _ cm.GSI = (*GSI)(nil)

// GSI returns the engine's general services QP.
func (e *Engine) GSI() *GSI { return &e.gsi }

// Receive implements cm.GSI.
func (g *GSI) Receive(f func(*cm.Datagram)) {
	if f == nil {
		g.recv.Store(nil)
		return
	}
	g.recv.Store(&f)
}

// receive handles a packet to QP 1. No QP is locked.
func (g *GSI) receive(port uint8, d *stack.Datagram, pkt *wire.Packet) {
	f := g.recv.Load()
	switch {
	case f == nil, d.V1: // the connection manager only uses RoCEv2
		g.e.Counters.UnknownQP.Add(1)
	case d.SrcQPNs != stack.Range{}:
		// That process shares QP 1. Only the hub, which checks the numbers in MADs, may forward them.
		g.e.Counters.Misdirected.Add(1)
	case pkt.PKey&0x7fff != defaultPKey&0x7fff:
		g.e.Counters.BadPKey.Add(1)
	case pkt.Opcode != wire.UDSendOnly, pkt.DETH.QKey != mad.QKey, pkt.DETH.SrcQP != mad.QPN,
		len(pkt.Payload) != mad.Size, d.InPlace: // a MAD is read more than once
		g.e.Counters.Malformed.Add(1)
	default:
		g.e.Counters.rcvdPkts.Add(1)
		g.e.Counters.recvs.Add(1)
		(*f)(&cm.Datagram{
			Port: port, Src: d.Src, Dst: d.Dst, TrafficClass: d.TrafficClass, Priority: uint8(d.TCI >> 13), Via: d.Via, MAD: pkt.Payload,
		})
	}
}

// Path implements cm.GSI.
func (g *GSI) Path(port uint8, a stack.PathAttr) (cm.Path, error) {
	datagrams, err := datagramsOf(g.e.nics[port-1])
	if err != nil {
		return nil, err
	}
	a.SrcPort = sourcePort(mad.QPN, mad.QPN)
	p, err := datagrams.Path(a)
	if err != nil {
		return nil, err
	}
	return &gsiPath{Path: p, g: g, port: datagrams}, nil
}

// gsiPath is a path to QP 1 of another host.
type gsiPath struct {
	stack.Path
	g    *GSI
	port stack.DatagramPort
}

// Send implements cm.Path.
func (p *gsiPath) Send(m *[mad.Size]byte) {
	pkt := wire.Packet{
		BTH: wire.BTH{
			Opcode: wire.UDSendOnly, PKey: defaultPKey, DestQP: mad.QPN, PSN: p.g.psn.Add(1) & (1<<24 - 1),
		},
		DETH:    wire.DETH{QKey: mad.QKey, SrcQP: mad.QPN},
		Payload: m[:],
	}
	s := p.port.Sender()
	if header, b := s.Datagram(p.Path, pkt.Size()); b != nil {
		pkt.Encode(header, b)
		p.g.e.Counters.sentPkts.Add(1)
		p.g.e.Counters.sends.Add(1)
	} else {
		p.g.e.Counters.SendErrors.Add(1)
	}
	s.Flush()
}
