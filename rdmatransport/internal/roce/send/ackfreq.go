package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// ackFrequency is when packets ask for an acknowledgement (the AckReq bit).
type ackFrequency struct {
	unasked uint32 // packets that were sent since the last request for an acknowledgement
	asked   uint32 // PSN behind the last packet with such a request; una if that is answered or to be sent again
}

func (a *ackFrequency) init(psn uint32) { *a = ackFrequency{asked: psn} }

// sent notes n packets from psn on, the last of which asks for an acknowledgement or not.
func (a *ackFrequency) sent(psn, n uint32, ask bool) {
	if a.unasked += n; ask {
		a.unasked, a.asked = 0, wire.PSNAdd(psn, n)
	}
}

// acked notes that everything before una is acknowledged.
func (a *ackFrequency) acked(una uint32) {
	if wire.PSNDiff(a.asked, una) < 0 {
		a.asked = una
	}
}

// rewind forgets what was asked for: it is to be sent again.
func (a *ackFrequency) rewind(una uint32) { a.asked = una }

// awaited tells that an acknowledgement was asked for that una does not include yet.
func (a *ackFrequency) awaited(una uint32) bool { return wire.PSNDiff(a.asked, una) > 0 }

// asksWithin tells whether a packet within a message asks for an acknowledgement, with so many unasked packets since the
// last that did, this one included; room for so many behind it in the window, and so many of its message left to fill it;
// a frame that ends with it, or not; and an acknowledgement awaited that will open the window, or not. One does now and
// then, at the end of a frame, and where the window is about to stop the sender with no acknowledgement on its way.
func (w *window) asksWithin(unasked, room, left uint32, frame, awaited bool) bool {
	switch {
	case room == 0:
		return !awaited
	case !frame:
		return false
	}
	return unasked >= uint32(w.period) || room < w.fullFrame(left) && !awaited
}
