package rocetransport

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
)

// Send path: the frame of every packet. The caller writes headers and payload between datagram and
// seal.

// datagram starts a packet to the peer with the given payload length. It returns the parts of the
// packet, or nil if the link cannot take it.
func (q *qp) datagram(p *wire.Packet, payload int) (header, b []byte) {
	p.DestQP = q.dest
	p.Opcode |= wire.Opcode(q.service) << 5
	if q.reliable() {
		p.Reserved7 = q.markOf(p)
	}
	return q.packet(q.path, p, payload)
}

// markOf returns BTH.Reserved7 of a packet to the peer.
func (q *qp) markOf(p *wire.Packet) uint8 {
	info := p.Opcode.Info()
	if info.Response() {
		return q.receiving.Mark().Newest()
	}
	n := uint32(1)
	if info.Read() {
		n = q.sending.Packets(uint64(p.RETH.Length))
	}
	if q.sending.SentBehind(wire.PSNAdd(p.PSN, n)) {
		return q.mark.Again()
	}
	return q.mark.Newest()
}

// packet is datagram for any path, and for the QP that p names.
func (q *qp) packet(path stack.Path, p *wire.Packet, payload int) (header, b []byte) {
	p.PKey = defaultPKey
	p.MigReq = true // the state Migrated, always, as there is no alternate path (IBTA Vol 1 §17.2.8)
	p.Pad = wire.PadLen(payload)
	if q.out == nil {
		q.out = q.e.nics[q.port-1].Datagrams().Sender()
	}
	header, b = q.out.Datagram(path, p.HeaderLen()+payload+int(p.Pad)+wire.ICRCLen)
	if b == nil {
		q.e.Counters.SendErrors.Add(1)
		return nil, nil
	}
	q.count().sentBytes += uint64(payload)
	clear(b[len(b)-wire.ICRCLen-int(p.Pad) : len(b)-wire.ICRCLen])
	return header, b[:len(b):len(b)]
}

// seal completes a packet whose payload is in place.
func (q *qp) seal(header, b []byte) {
	wire.PutICRC(header, b)
	q.sealed(header, b)
}

// icrc is the ICRC of a packet, begun over its headers and continued while the payload is copied.
type icrc struct{ sum uint32 }

// begin covers the headers. It returns a pointer to the sum, nil for a packet without ICRC.
func (i *icrc) begin(header, b []byte) *uint32 {
	if len(header) == 0 {
		return nil
	}
	i.sum = wire.ICRC(header, b)
	return &i.sum
}

// beginNext is begin for a packet that follows others of the same kind.
func (i *icrc) beginNext(run *wire.Run, header, b []byte) *uint32 {
	if len(header) == 0 {
		return nil
	}
	i.sum = run.ICRC(header, b)
	return &i.sum
}

// sealCopied is seal for a packet whose ICRC covers the first n bytes.
func (q *qp) sealCopied(header, b []byte, n int, sum *uint32) {
	if sum == nil {
		q.seal(header, b)
		return
	}
	wire.PutSum(b, wire.Update(*sum, b[n:len(b)-wire.ICRCLen]))
	q.sealed(header, b)
}

// sealed counts a complete packet.
func (q *qp) sealed(header, b []byte) {
	q.count().sentPkts++
	if q.pace != nil {
		q.pace.sent(len(header) + len(b))
	}
}

// sendMiddles sends n packets in the middle of a SEND, WRITE or READ response, with the contents of
// from. It returns the number of packets that it sent before the memory faulted.
func (q *qp) sendMiddles(opcode wire.Opcode, psn, n uint32, from memory.Span) (sent uint32) {
	mtu := int(q.mtu)
	p := wire.Packet{BTH: wire.BTH{Opcode: opcode}}
	var run wire.Run
	for ; sent < n; sent++ {
		p.PSN = wire.PSNAdd(psn, sent)
		header, b := q.datagram(&p, mtu)
		if b == nil {
			continue // treated as lost: the timeout retransmits it
		}
		p.BTH.Encode(b)
		var i icrc
		sum := i.beginNext(&run, header, b[:wire.BTHLen])
		if !from.Part(int(sent)*mtu, mtu).Read(b[wire.BTHLen:], sum) {
			q.out.Drop()
			return sent
		}
		q.sealCopied(header, b, wire.BTHLen+mtu, sum)
	}
	return sent
}

// sendHeader sends a packet without payload.
func (q *qp) sendHeader(p *wire.Packet) {
	if header, b := q.datagram(p, 0); b != nil {
		p.EncodeHeader(b)
		q.seal(header, b)
	}
}
