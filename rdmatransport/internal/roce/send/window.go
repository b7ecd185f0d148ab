package send

import "time"

// window is how many packets may be in flight, and how many of them make a frame.
type window struct {
	controller CongestionController
	size       uint16 // packets that may be in flight now
	most       uint16 // and at any time
	batch      uint16 // full packets in one frame of the link
	least      uint16 // that it shrinks to
	ackEvery   uint16 // bounds period; 0 does not
	period     uint16 // packets between two requests for an acknowledgement, where more are to follow: whole frames, if it is as many
}

// init opens a window of so many packets in full. A frame is half of it at most.
func (w *window) init(packets, batch uint32, rules CongestionController) {
	most := uint16(packets)
	params := rules.Params()
	*w = window{controller: rules, most: most, batch: uint16(min(batch, uint32(most/2))), least: uint16(params.MinWindow), ackEvery: uint16(params.AckEvery)}
	if params.InitialWindow == 0 {
		params.InitialWindow = packets
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

// clamp is the size that the window gets if the controller asks for size.
func (w *window) clamp(size uint32) uint16 {
	return uint16(min(max(size, uint32(w.least)), uint32(w.most)))
}

// What the controller makes of the window, for set.
func (w *window) onAck(acked uint32) uint32 { return w.controller.OnAck(uint32(w.size), acked) }
func (w *window) onLoss(lost uint32) uint32 { return w.controller.OnLoss(uint32(w.size), lost) }
func (w *window) onRoundTrip(took, now time.Duration) uint32 {
	return w.controller.OnRoundTrip(uint32(w.size), took, now)
}
func (w *window) onGoBack() uint32   { return w.controller.OnGoBack(uint32(w.size)) }
func (w *window) onTimeout() uint32  { return w.controller.OnTimeout(uint32(w.size)) }
func (w *window) onTailLoss() uint32 { return w.controller.OnTailLoss(uint32(w.size)) }

// frameRest is how many packets of a message of several are left in the frame of the given one.
func (w *window) frameRest(packet, packets uint32) uint32 {
	first := w.firstFrame(packets)
	if packet < first {
		return first - packet
	}
	return uint32(w.batch) - (packet-first)%uint32(w.batch)
}

// firstFrame is how many packets of a message its first frame has. Where the first packet is longer
// than those that follow, it shares a frame with one of them only; with none, if those fill their
// frames.
func (w *window) firstFrame(packets uint32) uint32 {
	if w.batch > 1 && (packets-1)%uint32(w.batch) == 0 {
		return 1
	}
	return 2
}

// readPiece is how many packets a request asks for of a READ's that are left, where there is room
// for so many: all, or as many as fill the frames of the answer. Its first packet shares one with
// the second, and its last, which is longer than those before it, begins another.
func (w *window) readPiece(left, room uint32) uint32 {
	const ends = 3
	batch := uint32(w.batch)
	if left <= room || room < ends+batch {
		return min(left, room)
	}
	return room - (room-ends)%batch
}

// fullFrame is how many packets make a full frame where left more of a message are to be sent.
func (w *window) fullFrame(left uint32) uint32 { return min(uint32(w.batch), left, uint32(w.size)) }

// readRoom is how many packets READs ask for at a time, while answers come: five eighths of the
// window, or on a long path an eighth, so that the path is in use while the requests are on their
// way. With more the requests are fewer, and each loss costs more.
func (w *window) readRoom(mtu uint32) uint32 {
	return min(uint32(w.size)/8*5, max(Window(DefaultWindow, mtu)/8*5, uint32(w.size)/8))
}
