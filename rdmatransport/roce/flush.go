package roce

// On the path: beside responder.go and requester.go, FLUSH and ATOMIC WRITE. They have answers as READs and atomics do, a
// READ response of no bytes; both are carried out in their turn, so what is flushed is all that came before, and an ATOMIC
// WRITE comes after. (IBTA annex A19) A FLUSH that makes something persistent takes long. What comes behind it and has an
// answer, too, waits until it is over (deferred.go); SENDs and WRITEs pass it, as they pass a READ: their requester has the
// fence. Their acknowledgements wait.

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/roce/internal/receive"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// sendSmall sends a request that has an answer of one packet.
func (q *qp) sendSmall(wr *verbs.SendWR, psn uint32) verbs.WCStatus {
	switch wr.Opcode {
	case verbs.AtomicWrite:
		return q.sendData(wr, 0, psn, true)
	case verbs.Flush:
		q.sendFlush(wr, psn)
	default:
		q.sendAtomic(wr, psn)
	}
	return verbs.WCSuccess
}

func (q *qp) sendFlush(wr *verbs.SendWR, psn uint32) {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, PSN: psn, AckReq: true}}
	p.XRCETH.SRQ = wr.RemoteSRQN
	p.FETH = wire.FETH{Placement: uint8(wr.FlushType), Selectivity: uint8(wr.FlushLevel)}
	p.RETH = wire.RETH{Addr: wr.RemoteAddr, RKey: wr.RKey, Length: wr.FlushLength}
	q.sendHeader(&p)
}

// execAtomicWrite stores eight bytes.
func (q *qp) execAtomicWrite(p *wire.Packet) bool {
	if q.receiving.Full() || len(p.Payload) != 8 || p.RETH.Length != 8 {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	a := wire.AtomicETH{Addr: p.RETH.Addr, RKey: p.RETH.RKey, Swap: binary.NativeEndian.Uint64(p.Payload)}
	return q.modifyWord(receive.Empty, wire.RCAtomicWrite, &a, verbs.AccessRemoteWrite)
}

// execFlush brings memory where it is to be. The memory is the processors' own: all that was written is visible to them
// already. Persistence takes the time of the file's device: others see to it (persist), and the answer waits in its place.
func (q *qp) execFlush(p *wire.Packet) bool {
	need, ok := flushRights(&p.FETH)
	if !ok || q.h.Attr().QPAccessFlags&need != need || q.receiving.Full() {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	what, denial := q.e.regions.Whole(q.scope(), q.h, p.RETH.RKey, need)
	if denial == memory.Allowed && p.FETH.Selectivity == wire.FlushRange {
		what, denial = q.e.regions.RemoteIn(q.scope(), q.h, p.RETH.RKey, p.RETH.Addr, uint64(p.RETH.Length), need)
	}
	if denial != memory.Allowed {
		return q.refuse(wire.NakRemoteAccess, verbs.WCRemAccessErr)
	}
	if need&verbs.AccessFlushPersistent != 0 {
		if mr, b := q.e.regions.File(p.RETH.RKey, what); mr != nil {
			q.answerLater(receive.Empty, &deferred{file: mr, bytes: b})
			return false
		}
	}
	q.answer(receive.Response{Kind: receive.Empty})
	return false
}

// flushRights is what a QP and a region need for a FLUSH; not ok if that is none that is defined.
func flushRights(f *wire.FETH) (need verbs.Access, ok bool) {
	if f.Placement&wire.FlushGlobal != 0 {
		need |= verbs.AccessFlushGlobal
	}
	if f.Placement&wire.FlushPersistent != 0 {
		need |= verbs.AccessFlushPersistent
	}
	return need, need != 0 && f.Placement&^(wire.FlushGlobal|wire.FlushPersistent) == 0 && f.Selectivity <= wire.FlushRegion
}
