package send

import "time"

// window is how many packets may be in flight, and how many of them make a frame.
type window struct {
	rules  CongestionController
	size   uint16 // packets that may be in flight now
	most   uint16 // and at any time
	batch  uint16 // full packets in one frame of the link
	least  uint16 // that it shrinks to
	often  uint16 // bounds period; 0 does not
	period uint16 // packets between two requests for an acknowledgement, where more are to follow: whole frames, if it is as many
}

// init opens a window of so many packets in full. A frame is half of it at most.
func (w *window) init(packets, batch uint32, rules CongestionController) {
	most := uint16(packets)
	terms := rules.Terms()
	*w = window{rules: rules, most: most, batch: uint16(min(batch, uint32(most/2))), least: uint16(terms.Least), often: uint16(terms.AckEvery)}
	if terms.Start == 0 {
		terms.Start = packets
	}
	w.set(terms.Start)
}

func (w *window) set(size uint32) {
	n := w.clamp(size)
	if n == w.size {
		return
	}
	w.size = n
	w.period = max(1, n/acksPerWindow)
	if w.often != 0 {
		w.period = min(w.period, w.often)
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
func (w *window) onAck(acked uint32) uint32 { return w.rules.OnAck(uint32(w.size), acked) }
func (w *window) onLoss(lost uint32) uint32 { return w.rules.OnLoss(uint32(w.size), lost) }
func (w *window) onRoundTrip(took, now time.Duration) uint32 {
	return w.rules.OnRoundTrip(uint32(w.size), took, now)
}
func (w *window) onGoBack() uint32   { return w.rules.OnGoBack(uint32(w.size)) }
func (w *window) onTimeout() uint32  { return w.rules.OnTimeout(uint32(w.size)) }
func (w *window) onTailLoss() uint32 { return w.rules.OnTailLoss(uint32(w.size)) }

// frameRest is how many packets of a long message are left in the frame of the given one. The first packet is longer than
// those that follow: it shares a frame with the second, or with what came before.
func (w *window) frameRest(packet uint32) uint32 {
	if packet < 2 {
		return 2 - packet
	}
	return uint32(w.batch) - (packet-2)%uint32(w.batch)
}

// fullFrame is how many packets make a full frame where left more of a message are to be sent.
func (w *window) fullFrame(left uint32) uint32 { return min(uint32(w.batch), left, uint32(w.size)) }

// readRoom is how many packets READs ask for at a time, while answers come: half of the window, or on a long path an eighth, so
// that the path is in use while the requests are on their way.
func (w *window) readRoom(mtu uint32) uint32 {
	return min(uint32(w.size)/2, max(Window(DefaultWindow, mtu)/2, uint32(w.size)/8))
}
