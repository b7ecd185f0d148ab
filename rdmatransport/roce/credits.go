package roce

// On the path: end-to-end flow control, the requester's half (IBTA Vol 1 §9.7.7.2). An acknowledgement of a peer whose
// receive queue is its QP's own says for how many messages that queue has room. A message that takes a receive request
// and goes beyond that is sent alone and asks for an acknowledgement, which tells of room, or is an RNR NAK.
//
// Until a peer gives credits, or where it says that it gives none (rxe, and every QP with an SRQ), nothing is held back:
// there are RNR NAKs. Our responder gives none, as rxe's does. An acknowledgement leaves before the application has seen
// the message, let alone posted its receive request anew, so that its count would be low just when a sender is fast.

import (
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// credits is how many messages the peer has room for. Messages are counted from the QP's start, modulo 2^24, as the peer
// counts those that it has completed (MSN).
type credits struct {
	sent  uint32 // messages begun (SSN)
	limit uint32 // messages that may be (LSN)
	given bool   // the peer gives credits
}

// update takes in what an acknowledgement says. An older one says less.
func (c *credits) update(a *wire.AETH) {
	n, ok := a.Credits()
	limit := wire.PSNAdd(a.MSN, n)
	if ok && (!c.given || wire.PSNDiff(limit, c.limit) > 0) {
		c.limit = limit
	}
	c.given = ok
}

// begin notes that one more message is sent.
func (c *credits) begin(op verbs.WROpcode) {
	c.sent++
	if c.given && !takesReceive(op) {
		c.limit++ // which it counts, and has room for anyway
	}
}

// allow tells whether one more message may be begun: within the limit, or one beyond it.
func (c *credits) allow(op verbs.WROpcode) bool {
	return !c.given || !takesReceive(op) || wire.PSNDiff(c.sent+1, c.limit) <= 1
}

// beyond tells that the message that was begun last is a SEND that goes beyond the limit.
func (c *credits) beyond(op verbs.WROpcode) bool {
	return c.given && isSend(op) && wire.PSNDiff(c.sent, c.limit) > 0
}

// takesReceive tells whether a request takes a receive request of the peer's.
func takesReceive(op verbs.WROpcode) bool { return isSend(op) || op == verbs.RDMAWriteWithImm }

func isSend(op verbs.WROpcode) bool {
	return op == verbs.Send || op == verbs.SendWithImm || op == verbs.SendWithInv
}
