package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// credits is end-to-end flow control, the requester's half (IBTA Vol 1 §9.7.7.2). An
// acknowledgement of a peer whose receive queue is its QP's own says for how many messages that
// queue has room. A message that takes a receive request and goes beyond that is sent alone and
// asks for an acknowledgement, which tells of room, or is an RNR NAK.
//
// Until a peer gives credits, or where it says that it gives none (rxe, and every QP with an SRQ),
// nothing is held back: there are RNR NAKs. Our responder gives none, as rxe's does. An
// acknowledgement leaves before the application has seen the message, let alone posted its receive
// request anew, so that its count would be low just when a sender is fast.
//
// Messages are counted from the QP's start, modulo 2^24, as the peer counts those that it has
// completed (MSN).
type credits struct {
	begun uint32 // messages that are begun (SSN)
	limit uint32 // messages that may be (LSN)
	given bool   // the peer gives credits
}

func (c *credits) reset() { *c = credits{} }

// update notes the credits of an acknowledgement: n beyond message msn, or none. Those of an older
// acknowledgement, which are fewer, change nothing.
func (c *credits) update(msn, n uint32, given bool) {
	limit := wire.PSNAdd(msn, n)
	if given && (!c.given || wire.PSNDiff(limit, c.limit) > 0) {
		c.limit = limit
	}
	c.given = given
}

// begin counts one more message.
func (c *credits) begin(k Kind) {
	c.begun++
	if c.given && !k.takesReceive() {
		c.limit++ // which it counts, and has room for anyway
	}
}

// allow reports whether a message may be begun behind n others: within the limit, or one beyond it.
func (c *credits) allow(k Kind, n uint32) bool {
	return !c.given || !k.takesReceive() || wire.PSNDiff(n+1, c.limit) <= 1
}

// exceeded reports whether a SEND that is the n-th message goes beyond the limit.
func (c *credits) exceeded(k Kind, n uint32) bool {
	return c.given && k == Send && wire.PSNDiff(n, c.limit) > 0
}
