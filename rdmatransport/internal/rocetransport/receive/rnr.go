package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// rnrWait tracks the packets that arrive after an RNR NAK. Some were in flight when the peer
// received the NAK. They prove nothing about the packet of the NAK. Packets sent after the wait
// show whether that packet was retransmitted and lost.
type rnrWait struct {
	end time.Duration // the end of the wait that the RNR NAK asked for
	top uint32        // one past the PSN of the last packet since the RNR NAK, or the NAK's own PSN
}

// begin records that an RNR NAK of a PSN is due.
func (w *rnrWait) begin(psn uint32, end time.Duration) { w.top, w.end = psn, end }

// retransmissionLost reports whether a packet after the expected one proves that the expected one
// was retransmitted and lost. It does if its PSN shows that the peer has gone back. The first
// packet after the NAK, and a repetition of the last packet, prove it only after the wait. By then,
// no packet from before the NAK can be in flight.
func (w *rnrWait) retransmissionLost(psn, expected uint32, clock Clock) bool {
	switch d := wire.PSNDiff(psn, w.top); {
	case d < -1:
		return true
	case d == -1 || w.top == expected: // if d is -1, the network may have duplicated the last packet
		return clock() >= w.end
	}
	return false
}

// record records a packet that arrived during the wait.
func (w *rnrWait) record(psn uint32) { w.top = wire.PSNAdd(psn, 1) }
