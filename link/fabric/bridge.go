package fabric

import "github.com/softrnic/softrnic/link"

// maxForwarded limits what Forward lets an adapter hold, in bytes on the wire. A NIC behind which
// something real sends has no more room either.
const maxForwarded = 4 << 20

// Forward sends a frame, without its FCS, from the host to another one, or to all others if to is
// nil. The frame's addresses do not matter: the host stands for something real, which is connected
// to this place of the network. It returns false if the frame is too short or too long, or if the
// adapter's queue is full, as when the network has paused it for long.
func (h *Host) Forward(frame []byte, to *Host) bool {
	f, n := h.f, len(frame)
	if n < link.EthernetHeaderLen || n > f.maxFrame() || h.removed || to == h || h.port.queued() > maxForwarded {
		return false
	}
	p := h.shard.newPacket(n)
	copy(p.frame, frame)
	p.from, p.to = h.index, -1
	if to != nil {
		p.to = to.index
	}
	f.describe(p)
	h.port.send(p)
	return true
}
