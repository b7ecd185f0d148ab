package rocetransport

import (
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// Receive path: the entry of all packets.

// receive handles the datagrams of one frame. Consecutive packets of one QP are handled with the QP
// locked once, and answered by one acknowledgement.
func (e *Engine) receive(port uint8, d *stack.Datagram) {
	var pkt wire.Packet
	var run wire.Run
	var held *qp
	var scratch *wire.Scratch
	if d.Truncated {
		e.drop(port, d, d.Payload, nil, &e.Counters.Malformed)
		return
	}
	for {
		b, ok := d.Next()
		if !ok {
			break
		}
		var err error
		if d.InPlace {
			if scratch == nil {
				scratch = scratches.Get().(*wire.Scratch)
			}
			err = pkt.ParseInPlace(b, scratch)
		} else {
			err = pkt.Parse(b)
		}
		// The QP refuses a reserved opcode.
		if err != nil && err != wire.ErrOpcode {
			held = e.drop(port, d, b, held, &e.Counters.Malformed)
			continue
		}
		id, right := asGuessed, d.NoICRC
		rxeFlush := e.rxeFlush && pkt.Opcode == wire.RCFlush
		switch {
		case d.NoICRC:
		case d.IDGuessed && e.isTrimmed(d): // the identification of what is left would be found too often
		case d.IDGuessed:
			id, right = e.identify(d, b, rxeFlush)
		case rxeFlush:
			right = wire.CheckRxeFlushICRC(d.Header, b)
		default:
			right = run.Check(d.Header, b)
		}
		if !right {
			held = e.drop(port, d, b, held, &e.Counters.ICRCErrors)
			continue
		}
		if pkt.DestQP == mad.QPN || pkt.DestQP == multicastQPN {
			if held != nil { // these functions lock QPs themselves
				held.sendDueAndUnlockAfter(d)
				held = nil
			}
			if pkt.DestQP == mad.QPN {
				e.gsi.receive(port, d, &pkt)
			} else {
				e.receiveMulticast(port, d, &pkt)
			}
			continue
		}
		q := e.qps.Get(pkt.DestQP)
		if q == nil {
			e.Counters.UnknownQP.Add(1)
			continue
		}
		if q != held {
			if held != nil {
				held.sendDueAndUnlockAfter(d)
			}
			q.h.Lock()
			held = q
		}
		switch {
		case id != asGuessed:
			held.receiveIdentified(port, d, &pkt, id)
		case d.NoICRC && pkt.Opcode == wire.RCWriteMiddle && !pkt.AckReq:
			expected := held.receiving.PSN()
			held.receive(port, d, &pkt)
			if pkt.PSN == expected && held.receiving.PSN() != expected { // it was executed
				held.receiveRun(d, &pkt)
			}
		default:
			held.receive(port, d, &pkt)
		}
	}
	if held != nil {
		held.sendDueAndUnlockAfter(d)
	}
	if scratch != nil {
		scratches.Put(scratch)
	}
}

// scratches are buffers for the headers of packets in memory that another process can change.
var scratches = sync.Pool{New: func() any { return new(wire.Scratch) }}

// isFor reports whether a packet's addresses are those of the connection. A UD QP accepts a
// multicast address only with the multicast QP number, and vice versa. If the sender's QP numbers
// are known, the peer must be one of them.
func (q *qp) isFor(d *stack.Datagram, pkt *wire.Packet) bool {
	if q.service == wire.UD {
		return d.Dst.IsMulticast() == (pkt.DestQP == multicastQPN) && (d.SrcQPNs == stack.Range{} || d.SrcQPNs.Contains(pkt.DETH.SrcQP))
	}
	return d.Src == q.ends.Dst && d.Dst == q.ends.Src && d.V1 == q.ends.V1 && (d.SrcQPNs == stack.Range{} || d.SrcQPNs.Contains(q.dest))
}

// receive passes a packet to the requester or the responder after the checks of IBTA Vol 1 §9.6.1.
func (q *qp) receive(port uint8, d *stack.Datagram, pkt *wire.Packet) {
	info := pkt.Opcode.Info()
	state := q.h.State()
	switch {
	case q.destroyed || !receives(state) || port != q.port || !q.isFor(d, pkt):
		q.e.Counters.Misdirected.Add(1)
		return
	case pkt.PKey&0x7fff != defaultPKey&0x7fff:
		q.e.Counters.BadPKey.Add(1)
		return
	case pkt.Opcode == wire.CNP:
		q.count().rcvdPkts++
		q.onCNP()
		return
	case q.h.PlacingFull() && (!info.Response() || info.Read()):
		// Lost, until the backend has taken more of what was received.
		if info.Response() {
			q.sending.OnResponseDropped()
		}
		return
	case q.service == wire.UD:
		q.receiveDatagram(d, pkt)
		return
	case pkt.Opcode.Transport() != q.service:
		q.e.Counters.Malformed.Add(1)
		return
	}
	s := q.count()
	s.rcvdPkts++
	s.rcvdBytes += uint64(len(pkt.Payload))
	if q.notify != nil && d.TrafficClass&ecnMask == congestionExperienced {
		q.onECNMark()
	}
	switch {
	case q.service == wire.UC:
		q.receiveMessage(pkt, info)
	case info.Request() || !info.Known():
		if q.kind != verbs.XRCSend {
			q.request(pkt, info)
		}
	case sends(state) && q.kind != verbs.XRCRecv:
		q.response(pkt, info)
	}
}
