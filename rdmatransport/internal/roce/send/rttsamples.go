package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// delays is the round trips that are being measured for a congestion controller that goes by them:
// of packets that ask for an acknowledgement, and of requests for answers. Several are under way at
// a time.
type rttSamples struct {
	samples [8]rttSample // in the order of their PSNs
	n       int
	next    time.Duration // when the next may begin: they are spread over a round trip
	last    time.Duration // the last that was measured
}

type rttSample struct {
	psn  uint32
	sent time.Duration
}

// begin notes that a packet was sent for the first time, unless as many as can be are being
// measured.
func (d *rttSamples) begin(psn uint32, now time.Duration) {
	if d.n < len(d.samples) && now >= d.next {
		d.samples[d.n] = rttSample{psn, now}
		d.n++
		d.next = now + d.last/time.Duration(len(d.samples))
	}
}

// cancel gives up measuring the packets from PSN psn on: they are sent again, and nobody could tell
// which transmission an answer is to.
func (d *rttSamples) cancel(psn uint32) {
	for i, t := range d.samples[:d.n] {
		if wire.PSNDiff(t.psn, psn) >= 0 {
			d.n = i
			return
		}
	}
}

// answered ends the measurements of the packets that arrived tells of. It returns how long the
// newest has taken: the answer is to that one, and to others only besides.
func (d *rttSamples) answered(clock Clock, arrived func(psn uint32) bool) (took, now time.Duration, ok bool) {
	kept, sent := 0, time.Duration(0)
	for _, t := range d.samples[:d.n] {
		if arrived(t.psn) {
			sent, ok = t.sent, true
		} else {
			d.samples[kept] = t
			kept++
		}
	}
	d.n = kept
	if ok {
		now = clock()
		d.last = now - sent
	}
	return d.last, now, ok
}
