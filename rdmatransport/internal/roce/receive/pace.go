package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
)

// pace is how fast the responses of READs go.
type pace struct {
	resume time.Duration // when the pause behind a burst ends; 0 if there is none
	burst  uint32        // responses that are sent at once, where READs have shown how many the peer can take; or 0
}

// pause begins the pause behind a burst.
func (p *pace) pause(until time.Duration) { p.resume = until }

// endPause ends it.
func (p *pace) endPause() { p.resume = 0 }

// size is how many responses of a READ are sent at once. For a READ of up to a window that is all
// of them. For a longer one it is fewer than a window, as the requester can say that they come too
// fast only by asking again for those that it missed.
func (p *pace) size(packets, window uint32) uint32 {
	switch {
	case p.burst != 0:
		return p.burst
	case packets > window:
		return min(firstBurst, window)
	}
	return window
}

// missed notes that responses of a READ of so many packets were lost: the next are sent more
// slowly.
func (p *pace) missed(packets, window uint32) {
	p.burst = max(p.size(packets, window)/2, send.MinWindow)
}

// sent notes that all responses of a READ, which was no repetition, are sent: the next come faster.
func (p *pace) sent(packets, window uint32) {
	if size := p.size(packets, window); size < window {
		p.burst = min(2*size, window)
	}
}
