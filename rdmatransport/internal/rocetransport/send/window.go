package send

import "time"

// window limits the number of packets in flight, and splits messages into frames.
type window struct {
	controller CongestionController
	size       uint16 // packets that may be in flight now
	most       uint16 // largest size
	batch      uint16 // full packets in one frame of the link
	least      uint16 // smallest size
	ackEvery   uint16 // upper bound of period; 0 is no bound
	// Packets between two acknowledgement requests within a message; whole frames, if it is that long.
	period uint16
	span   uint32 // number of PSNs that may be sent, from the oldest missing one on
}

// init sets up a window that is fully open. A frame is at most half of it.
func (w *window) init(p *Path) {
	params := p.Congestion.Params()
	*w = window{
		controller: p.Congestion, most: uint16(p.Window), batch: uint16(min(p.Batch, p.Window/2)),
		least: uint16(params.MinWindow), ackEvery: uint16(params.AckEvery), span: p.Span,
	}
	if params.InitialWindow == 0 {
		params.InitialWindow = p.Window
	}
	w.set(params.InitialWindow)
}

func (w *window) set(size uint32) {
	n := w.clamp(size)
	if n == w.size {
		return
	}
	w.size = n
	w.period = max(1, n/acksPerWindow)
	if w.ackEvery != 0 {
		w.period = min(w.period, w.ackEvery)
	}
	if w.period > w.batch {
		w.period -= w.period % w.batch
	}
}

// clamp returns the window size for a size that the controller asks for.
func (w *window) clamp(size uint32) uint16 {
	return uint16(min(max(size, uint32(w.least)), uint32(w.most)))
}

// allowSmall lets the window become smaller than the controller's smallest. The peer says at once
// which packets are trimmed, so that no later packets need to show it.
func (w *window) allowSmall() { w.least = min(w.least, trimmedWindow) }

// The controller's responses to events, for set.
func (w *window) onAck(acked uint32) uint32 { return w.controller.OnAck(uint32(w.size), acked) }
func (w *window) onLoss(lost uint32) uint32 { return w.controller.OnLoss(uint32(w.size), lost) }
func (w *window) onRoundTrip(took, now time.Duration) uint32 {
	return w.controller.OnRoundTrip(uint32(w.size), took, now)
}
func (w *window) onGoBack() uint32   { return w.controller.OnGoBack(uint32(w.size)) }
func (w *window) onTimeout() uint32  { return w.controller.OnTimeout(uint32(w.size)) }
func (w *window) onTailLoss() uint32 { return w.controller.OnTailLoss(uint32(w.size)) }

// frameRest returns the number of packets of a message that are left in the frame of the given
// packet.
func (w *window) frameRest(packet, packets uint32) uint32 {
	first := w.firstFrame(packets)
	if packet < first {
		return first - packet
	}
	return uint32(w.batch) - (packet-first)%uint32(w.batch)
}

// firstFrame returns the number of packets in the first frame of a message. If the first packet is
// longer than the others, only one more fits into its frame. It is alone if the others fill their
// frames.
func (w *window) firstFrame(packets uint32) uint32 {
	if w.batch > 1 && (packets-1)%uint32(w.batch) == 0 {
		return 1
	}
	return 2
}

// readPiece returns the number of responses of a READ to request next, if left of them are missing
// and the window has room for room. It is all of them, or as many as fill whole frames. The first
// response shares a frame with the second. The last, which is longer, starts another frame.
func (w *window) readPiece(left, room uint32) uint32 {
	const ends = 3
	batch := uint32(w.batch)
	if left <= room || room < ends+batch {
		return min(left, room)
	}
	return room - (room-ends)%batch
}

// fullFrame returns the number of packets in a full frame, with left packets to go.
func (w *window) fullFrame(left uint32) uint32 { return min(uint32(w.batch), left, uint32(w.size)) }

// readRoom returns the number of responses that READs request at a time while responses arrive. It
// is five eighths of the window. On a long path it is an eighth, so that the path is busy while
// requests are in flight. A larger value means fewer requests, and a higher cost of each loss.
func (w *window) readRoom(mtu uint32) uint32 {
	return min(uint32(w.size)/8*5, max(Window(DefaultWindow, mtu)/8*5, uint32(w.size)/8))
}
