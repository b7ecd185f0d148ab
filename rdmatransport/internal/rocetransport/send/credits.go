package send

import "github.com/softrnic/softrnic/rdmatransport/wire"

// credits is the requester's half of end-to-end flow control (IBTA Vol 1 §9.7.7.2). If the peer's
// QP has its own receive queue, each acknowledgement says for how many messages that queue has
// room. A message beyond that limit is sent as a single packet that requests an acknowledgement.
// The answer carries new credits, or is an RNR NAK.
//
// If a peer gives no credits, nothing is held back, and RNR NAKs limit the sender. rxe gives none,
// and neither does a QP with an SRQ. Our responder gives none either, because it sends
// acknowledgements before the application gets the message and posts another receive request.
// Credits would therefore be low exactly when a sender is fast.
//
// Messages are counted from the QP's start, modulo 2^24, like the peer's count of completed
// messages (MSN).
type credits struct {
	begun uint32 // messages started (SSN)
	limit uint32 // messages that may be started (LSN)
	given bool   // the peer gives credits
}

func (c *credits) reset() { *c = credits{} }

// update applies the credits of an acknowledgement: n beyond message msn, or none. Those of older
// acknowledgements are lower, and change nothing.
func (c *credits) update(msn, n uint32, given bool) {
	limit := wire.PSNAdd(msn, n)
	if given && (!c.given || wire.PSNDiff(limit, c.limit) > 0) {
		c.limit = limit
	}
	c.given = given
}

// begin counts a started message.
func (c *credits) begin(k Kind) {
	c.begun++
	if c.given && !k.takesReceive() {
		c.limit++ // the peer counts the message too, but it needs no receive request
	}
}

// allow reports whether a message may start after n others. It may be within the limit, or one
// beyond it.
func (c *credits) allow(k Kind, n uint32) bool {
	return !c.given || !k.takesReceive() || wire.PSNDiff(n+1, c.limit) <= 1
}

// exceeded reports whether the n-th message, if it is a SEND, exceeds the limit.
func (c *credits) exceeded(k Kind, n uint32) bool {
	return c.given && k == Send && wire.PSNDiff(n, c.limit) > 0
}
