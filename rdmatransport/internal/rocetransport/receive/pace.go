package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
)

// pace limits the rate of READ responses.
type pace struct {
	resume time.Duration // end of the pause after a burst; 0 if there is none
	burst  uint32        // responses sent at once, learned from earlier READs; 0 if unknown
}

// pause begins the pause after a burst.
func (p *pace) pause(until time.Duration) { p.resume = until }

// endPause ends the pause.
func (p *pace) endPause() { p.resume = 0 }

// size returns the number of responses of a READ that are sent at once. If the READ fits in a
// window, these are all of them. Otherwise there are fewer, because a requester has only one way to
// signal that responses arrive too fast: it asks for the lost ones again.
func (p *pace) size(packets, window uint32) uint32 {
	switch {
	case p.burst != 0:
		return p.burst
	case packets > window:
		return min(firstBurst, window)
	}
	return window
}

// onLoss records that responses of a READ of this many packets were lost. Later responses are sent
// more slowly.
func (p *pace) onLoss(packets, window uint32) {
	p.burst = max(p.size(packets, window)/2, send.MinWindow)
}

// onSent records that all responses of a new READ are sent. Later ones are sent faster.
func (p *pace) onSent(packets, window uint32) {
	if size := p.size(packets, window); size < window {
		p.burst = min(2*size, window)
	}
}
