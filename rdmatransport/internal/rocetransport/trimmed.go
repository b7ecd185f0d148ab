package rocetransport

// Receive path of packets that a switch has cut to their headers, in place of dropping them (see
// roce.Config.TrimmedDSCP). Their ICRC cannot be checked, so they are hints.

import (
	"sync/atomic"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// isTrimmed reports whether a datagram has the DSCP of trimmed ones.
func (e *Engine) isTrimmed(d *stack.Datagram) bool {
	return e.trimmedDSCP != 0 && d.TrafficClass>>2 == e.trimmedDSCP && !d.NoICRC && !d.InPlace && !d.V1
}

// drop counts a packet that does not parse or has a wrong ICRC, unless it was trimmed. held is the
// QP that is locked, or nil; it returns the one that is locked afterwards.
func (e *Engine) drop(port uint8, d *stack.Datagram, b []byte, held *qp, count *atomic.Uint64) *qp {
	if e.isTrimmed(d) {
		if held != nil {
			held.sendDueAndUnlockAfter(d)
			held = nil
		}
		if e.receiveTrimmed(port, d, b) {
			return nil
		}
	}
	count.Add(1)
	return held
}

// receiveTrimmed handles a trimmed packet. It returns false if the packet is none of a reliable
// connection that causes an answer.
func (e *Engine) receiveTrimmed(port uint8, d *stack.Datagram, b []byte) (used bool) {
	var p wire.Packet
	if p.ParseTrimmed(b) != nil || p.PKey&0x7fff != defaultPKey&0x7fff {
		return false
	}
	info := p.Opcode.Info()
	request, answer := info.Send() || info.Write() && !info.AtomicWrite(), info.Read() && info.Response()
	if !request && !answer {
		return false
	}
	q := e.qps.Get(p.DestQP)
	if q == nil {
		return false
	}
	q.h.Lock()
	state := q.h.State()
	reliable := q.reliable() && p.Opcode.Transport() == q.service
	switch {
	case !reliable || q.destroyed || !receives(state) || port != q.port || !q.isFor(d, &p):
	case request && q.kind != verbs.XRCSend:
		used = q.receiving.OnTrimmed(&p)
	case answer && q.kind != verbs.XRCRecv && sends(state):
		o, ok := q.sending.OnTrimmedAnswer(p.PSN, q.marked(&p))
		used = ok
		q.act(o)
	}
	if !used {
		q.unlockOnly()
		return false
	}
	e.Counters.Trimmed.Add(1)
	if q.notify != nil {
		q.onECNMark()
	}
	q.sendDueAndUnlock()
	return true
}
