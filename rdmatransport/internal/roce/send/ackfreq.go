package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// ackFrequency is when packets ask for an acknowledgement (the AckReq bit).
type ackFrequency struct {
	sinceAckReq uint32 // packets that were sent since the last request for an acknowledgement
	requested   uint32 // PSN behind the last packet that asks for one; una if that is answered or to be sent again
}

func (a *ackFrequency) init(psn uint32) { *a = ackFrequency{requested: psn} }

// sent notes n packets from psn on, the last of which asks for an acknowledgement or not.
func (a *ackFrequency) sent(psn, n uint32, ask bool) {
	if a.sinceAckReq += n; ask {
		a.sinceAckReq, a.requested = 0, wire.PSNAdd(psn, n)
	}
}

// acked notes that everything before una is acknowledged.
func (a *ackFrequency) acked(una uint32) {
	if wire.PSNDiff(a.requested, una) < 0 {
		a.requested = una
	}
}

// rewind forgets what was asked for: it is to be sent again.
func (a *ackFrequency) rewind(una uint32) { a.requested = una }

// awaited reports whether an acknowledgement was asked for that una does not include yet.
func (a *ackFrequency) awaited(una uint32) bool { return wire.PSNDiff(a.requested, una) > 0 }

// ackReqWithin reports whether a packet that is not the last of its message asks for an
// acknowledgement. sinceAckReq is how many packets were sent since the last that asked, this one
// included; room is how many more the window takes, and left how many more the message has; frame
// says that a frame ends with this packet, and awaited that an acknowledgement is awaited which
// will open the window. A packet asks if it is the last that the window takes, or at the end of a
// frame if many have not asked or the window is nearly full.
func (w *window) ackReqWithin(sinceAckReq, room, left uint32, frame, awaited bool) bool {
	switch {
	case room == 0:
		return !awaited
	case !frame:
		return false
	}
	return sinceAckReq >= uint32(w.period) || room < w.fullFrame(left) && !awaited
}
