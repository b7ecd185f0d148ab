package roce

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/stack"
)

// On the path: the frame of every packet that leaves. Between datagram and seal, the caller writes
// the headers and the payload.

// datagram starts a packet of the given payload length to the peer and returns its parts, or nils
// where the link cannot take it.
func (q *qp) datagram(p *wire.Packet, payload int) (header, b []byte) {
	p.DestQP = q.dest
	p.Opcode |= wire.Opcode(q.service) << 5
	if q.reliable() {
		p.Reserved7 = q.markOf(p)
	}
	return q.packet(q.path, p, payload)
}

// markOf is the BTH.Reserved7 of a packet to the peer.
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

// packet is the same as datagram, on any path, and to the QP that p names.
func (q *qp) packet(path stack.Path, p *wire.Packet, payload int) (header, b []byte) {
	p.PKey = defaultPKey
	p.MigReq = true // the state Migrated, for good: there is no alternate path (IBTA Vol 1 §17.2.8)
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

// seal finishes a packet whose payload is in place.
func (q *qp) seal(header, b []byte) {
	wire.PutICRC(header, b)
	q.sealed(header, b)
}

// icrc is the ICRC of a packet, begun over its headers, to be taken further while the payload is
// copied.
type icrc struct{ sum uint32 }

// begin begins with the headers. It returns where the sum is, nil for a packet without ICRC.
func (i *icrc) begin(header, b []byte) *uint32 {
	if len(header) == 0 {
		return nil
	}
	i.sum = wire.ICRC(header, b)
	return &i.sum
}

// beginNext is begin for a packet that follows others of its kind.
func (i *icrc) beginNext(run *wire.Run, header, b []byte) *uint32 {
	if len(header) == 0 {
		return nil
	}
	i.sum = run.ICRC(header, b)
	return &i.sum
}

// sealCopied is seal for a packet whose ICRC was taken over its first n bytes.
func (q *qp) sealCopied(header, b []byte, n int, sum *uint32) {
	if sum == nil {
		q.seal(header, b)
		return
	}
	wire.PutSum(b, wire.Update(*sum, b[n:len(b)-wire.ICRCLen]))
	q.sealed(header, b)
}

// sealed counts a packet that is complete.
func (q *qp) sealed(header, b []byte) {
	q.count().sentPkts++
	if q.pace != nil {
		q.pace.sent(len(header) + len(b))
	}
}

// sendMiddles sends n packets in the middle of a message, of a SEND, WRITE or READ response, with
// the content of some memory. It returns how many it sent before that faulted.
func (q *qp) sendMiddles(opcode wire.Opcode, psn, n uint32, from memory.Span) (sent uint32) {
	mtu := int(q.mtu)
	p := wire.Packet{BTH: wire.BTH{Opcode: opcode}}
	var run wire.Run
	for ; sent < n; sent++ {
		p.PSN = wire.PSNAdd(psn, sent)
		header, b := q.datagram(&p, mtu)
		if b == nil {
			continue // as good as lost: the timeout will try again
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
