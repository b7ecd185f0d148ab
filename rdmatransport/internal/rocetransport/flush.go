package rocetransport

// FLUSH and ATOMIC WRITE, for requester and responder (IBTA annex A19). They are answered by a READ
// response without payload, like READs and atomics, and executed in order. A FLUSH covers
// everything before it, and an ATOMIC WRITE follows it. A FLUSH that makes memory persistent takes
// long. Later requests with responses wait for it (deferred.go). SENDs and WRITEs overtake it, as
// they overtake a READ, unless the requester sets a fence. Their acknowledgements wait.

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/receive"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// sendSmall sends a request with a response of one packet.
func (q *qp) sendSmall(wr *verbs.PostedSend, psn uint32) verbs.WCStatus {
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

func (q *qp) sendFlush(wr *verbs.PostedSend, psn uint32) {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, PSN: psn, AckReq: true}}
	p.XRCETH.SRQ = wr.RemoteSRQN
	p.FETH = wire.FETH{Placement: uint8(wr.FlushType), Selectivity: uint8(wr.FlushLevel)}
	p.RETH = wire.RETH{Addr: wr.RemoteAddr, RKey: wr.RKey, Length: wr.FlushLength}
	header, b := q.datagram(&p, 0)
	if b == nil {
		return
	}
	p.EncodeHeader(b)
	if q.e.rxeFlush && p.Opcode == wire.RCFlush && len(header) > 0 {
		wire.PutSum(b, wire.RxeFlushICRC(header, b[:len(b)-wire.ICRCLen]))
		q.sealed(header, b)
		return
	}
	q.seal(header, b)
}

// execAtomicWrite stores eight bytes.
func (q *qp) execAtomicWrite(p *wire.Packet) bool {
	if q.receiving.Full() || len(p.Payload) != 8 || p.RETH.Length != 8 {
		return q.refuse(wire.NakInvalidRequest, verbs.WCRemInvReqErr)
	}
	a := wire.AtomicETH{Addr: p.RETH.Addr, RKey: p.RETH.RKey, Swap: binary.NativeEndian.Uint64(p.Payload)}
	return q.modifyWord(receive.Empty, wire.RCAtomicWrite, &a, verbs.AccessRemoteWrite)
}

// execFlush makes written data visible or persistent. It is already visible in the processors' own
// memory. Persistence takes the time of the file's device, so the FLUSH is deferred, and the
// response waits.
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
			d := newDeferred()
			d.file, d.bytes = mr, b
			q.deferWork(receive.Empty, d)
			return false
		}
	}
	q.answer(receive.Response{Kind: receive.Empty})
	return false
}

// flushRights returns the access flags that a FLUSH needs, of the QP and of the region. ok is false
// if the FLUSH is undefined.
func flushRights(f *wire.FETH) (need verbs.Access, ok bool) {
	if f.Placement&wire.FlushGlobal != 0 {
		need |= verbs.AccessFlushGlobal
	}
	if f.Placement&wire.FlushPersistent != 0 {
		need |= verbs.AccessFlushPersistent
	}
	return need, need != 0 && f.Placement&^(wire.FlushGlobal|wire.FlushPersistent) == 0 && f.Selectivity <= wire.FlushRegion
}
