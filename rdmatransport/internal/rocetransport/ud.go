package rocetransport

// Send and receive path of unreliable datagrams. A work request is one packet, sent and completed
// at once on the posting goroutine. A received datagram is placed after its network header, or
// silently dropped. (IBTA Vol 1 §9.8.3, A17.4.5)

import (
	"encoding/binary"
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// ownQKey is the bit of a work request's Q_Key that selects the QP's own (IBTA Vol 1 §10.2.5).
const ownQKey = 1 << 31

// address is the provider's part of an address handle.
type address struct {
	path    stack.Path
	backlog stack.Backlogged // path, or nil if it has none
}

// CreateAH creates the provider's part of an address handle.
func (e *Engine) CreateAH(attr *verbs.AHAttr) (verbs.ProviderAH, error) {
	if attr.PortNum < 1 || int(attr.PortNum) > len(e.nics) {
		return nil, fmt.Errorf("port %d: %w", attr.PortNum, verbs.ErrInvalid)
	}
	nic := e.nics[attr.PortNum-1]
	if err := e.access.Check(attr.GRH.DGID.Addr()); err != nil {
		return nil, err
	}
	path, err := openPath(nic, attr.PortNum, attr, 0, flowPort(&attr.GRH))
	if err != nil {
		return nil, err
	}
	return &address{path, backlogged(path)}, nil
}

// Destroy implements verbs.ProviderAH.
func (a *address) Destroy() { a.path.Close() }

// flowPort returns the UDP source port of an address handle, which any QP may use. It is derived
// from the flow label, folded as in Linux. Without a flow label it is derived from the destination.
func flowPort(grh *verbs.GRH) uint16 {
	if l := grh.FlowLabel; l != 0 {
		return 0xc000 | uint16(l&0x3fff^l>>14)
	}
	return sourcePort(uint32(grh.SGIDIndex), binary.BigEndian.Uint32(grh.DGID[12:]))
}

// sendDatagrams sends posted requests.
func (q *qp) sendDatagrams() {
	for q.h.SendLen() > 0 && !q.draining() && !q.blockedBy(q.h.AH(q.h.Send(0).AH).(*address).backlog) && q.rateAllows() {
		if status := q.sendDatagram(q.h.Send(0)); status != verbs.WCSuccess {
			q.h.CompleteSend(status, 0)
			q.traceState(q.h.State(), verbs.StateSQE)
			q.h.FailSend()
			return
		}
		q.count().sends++
		q.h.CompleteSend(verbs.WCSuccess, 0)
	}
}

// sendDatagram sends one datagram. If the path cannot take the datagram, it is lost, as it could be
// in the network.
func (q *qp) sendDatagram(wr *verbs.PostedSend) verbs.WCStatus {
	if s := wr.Fault(); s != verbs.WCSuccess {
		return s
	}
	n := int(wr.Length())
	p := wire.Packet{
		BTH: wire.BTH{
			Opcode: wire.UDSendOnly, Solicited: wr.Flags&verbs.SendSolicited != 0, DestQP: wr.RemoteQPN, PSN: q.unreliable.psn,
		},
		DETH: wire.DETH{QKey: wr.RemoteQKey, SrcQP: q.num},
		Imm:  wr.ImmData,
	}
	if wr.Opcode == verbs.SendWithImm {
		p.Opcode = wire.UDSendOnlyImm
	}
	if wr.RemoteQKey&ownQKey != 0 {
		p.DETH.QKey = q.h.Attr().QKey
	}
	q.unreliable.psn = wire.PSNAdd(q.unreliable.psn, 1)
	// Behind one address there may be several processes, each with a range of QPNs. The peer's kernel
	// passes a superframe to one of them.
	if (p.DestQP^q.unreliable.dest)>>16 != 0 && q.out != nil {
		q.out.Cut()
	}
	q.unreliable.dest = p.DestQP
	header, b := q.packet(q.h.AH(wr.AH).(*address).path, &p, n)
	if b == nil {
		return verbs.WCSuccess
	}
	h := p.EncodeHeader(b)
	if data := wr.Inline(); data != nil {
		copy(b[h:], data)
		q.seal(header, b)
		return verbs.WCSuccess
	}
	var i icrc
	sum := i.begin(header, b[:h])
	if status := q.e.regions.Gather(b[h:h+n], q.h.PD(), wr.SGList, 0, sum); status != verbs.WCSuccess {
		q.out.Drop()
		return status
	}
	q.sealCopied(header, b, h+n, sum)
	return verbs.WCSuccess
}

// receiveDatagram places a datagram in the next receive request.
func (q *qp) receiveDatagram(d *stack.Datagram, p *wire.Packet) {
	c := &q.e.Counters
	switch {
	case !q.e.access.Admits(d.Src):
		return
	case p.Opcode.Transport() != wire.UD || !p.Opcode.Info().Known():
		c.Malformed.Add(1)
		return
	case p.DETH.QKey != q.h.Attr().QKey:
		c.QKeyViolations.Add(1)
		return
	}
	if !d.Dst.IsMulticast() { // multicast is counted once, not per QP
		q.count().rcvdPkts++
	}
	wr := q.h.Recv()
	switch {
	case wr == nil:
		c.NoReceive.Add(1)
		return
	case verbs.GRHLen+uint64(len(p.Payload)) > wr.Length():
		c.TooLong.Add(1) // the receive request waits for a datagram that fits
		return
	}
	wc := verbs.WC{
		Opcode: verbs.WCRecv, Flags: verbs.WCGRH, ByteLen: uint32(verbs.GRHLen + len(p.Payload)), SrcQP: p.DETH.SrcQP,
		SL: uint8(d.TCI >> 13), CVLAN: d.TCI,
	}
	switch {
	case d.V1:
	case d.Dst.Is4():
		wc.NetworkHdrType = verbs.NetworkHdrIPv4
	default:
		wc.NetworkHdrType = verbs.NetworkHdrIPv6
	}
	if p.Opcode.Info().HasImmDt() {
		wc.Flags |= verbs.WCWithImm
		wc.ImmData = p.Imm
	}
	wc.Status = q.scatterDatagram(d, p, wr)
	q.h.CompleteRecv(&wc, p.Solicited)
	if wc.Status != verbs.WCSuccess {
		q.fail()
		return
	}
	q.recvs++
	q.count().rcvdBytes += uint64(len(p.Payload))
}

// scatterDatagram places the network header and the payload.
func (q *qp) scatterDatagram(d *stack.Datagram, p *wire.Packet, wr *verbs.PostedRecv) verbs.WCStatus {
	var grh [verbs.GRHLen]byte
	d.PutGRH(&grh)
	status := q.e.regions.ScatterRecv(grh[:], q.h, wr, 0, p.PSN)
	if status == verbs.WCSuccess {
		status = q.e.regions.ScatterRecv(p.Payload, q.h, wr, verbs.GRHLen, p.PSN)
	}
	return status
}
