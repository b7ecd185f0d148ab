package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// rnrWait is what has come since an RNR NAK. Packets that were in flight when the peer got the NAK
// say nothing about the packet that it named; those that the peer sends after the time that the NAK
// asked for show whether that packet was lost.
type rnrWait struct {
	end time.Duration // when the time is over that the RNR NAK asked for
	top uint32        // one past the highest PSN that has come since, or the PSN that the RNR NAK is about
}

// begin notes that an RNR NAK of a PSN is due.
func (w *rnrWait) begin(psn uint32, end time.Duration) { w.top, w.end = psn, end }

// repeatedWithout reports whether a packet with PSN psn, from behind the one that the RNR NAK was
// about, shows that the peer has sent that again and it was lost: if the peer has gone back, or has
// nothing in flight from before, as its time is over.
func (w *rnrWait) repeatedWithout(psn, expected uint32, clock Clock) bool {
	switch d := wire.PSNDiff(psn, w.top); {
	case d < -1:
		return true
	case d == -1 || w.top == expected: // the former may be one packet that came twice
		return clock() >= w.end
	}
	return false
}

// came notes a packet that has come meanwhile.
func (w *rnrWait) came(psn uint32) { w.top = wire.PSNAdd(psn, 1) }
