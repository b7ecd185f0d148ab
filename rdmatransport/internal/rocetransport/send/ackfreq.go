package send

import "github.com/softrnic/softrnic/rdmatransport/wire"

// ackFrequency decides which packets request an acknowledgement (the AckReq bit).
type ackFrequency struct {
	sinceAckReq uint32 // packets sent since the last acknowledgement request
	// PSN after the last packet with a request; una if it is answered or to be retransmitted.
	requested uint32
}

func (a *ackFrequency) init(psn uint32) { *a = ackFrequency{requested: psn} }

// sent records n packets from psn on. ask: the last one requests an acknowledgement.
func (a *ackFrequency) sent(psn, n uint32, ask bool) {
	if a.sinceAckReq += n; ask {
		a.sinceAckReq, a.requested = 0, wire.PSNAdd(psn, n)
	}
}

// acked records that everything before una is acknowledged.
func (a *ackFrequency) acked(una uint32) {
	if wire.PSNDiff(a.requested, una) < 0 {
		a.requested = una
	}
}

// rewind drops the requests that are outstanding, because they will be repeated.
func (a *ackFrequency) rewind(una uint32) { a.requested = una }

// awaited reports whether a requested acknowledgement is outstanding.
func (a *ackFrequency) awaited(una uint32) bool { return wire.PSNDiff(a.requested, una) > 0 }

// ackReqWithin reports whether a packet, not the last of its message, requests an acknowledgement.
// sinceAckReq counts the packets since the last request, including this one. room is the rest of
// the window, and left the rest of the message. frame: the packet ends a frame. awaited: an
// outstanding acknowledgement will open the window. The last packet of the window requests one. So
// does the end of a frame, after many packets without a request or near the end of the window.
func (w *window) ackReqWithin(sinceAckReq, room, left uint32, frame, awaited bool) bool {
	switch {
	case room == 0:
		return !awaited
	case !frame:
		return false
	}
	return sinceAckReq >= uint32(w.period) || room < w.fullFrame(left) && !awaited
}
