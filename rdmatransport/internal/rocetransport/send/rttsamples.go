package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// rttSamples are the round-trip samples in progress, for a congestion controller. Samples are
// packets that request an acknowledgement, and requests with responses.
type rttSamples struct {
	samples [8]rttSample // in the order of their PSNs
	n       int
	next    time.Duration // start of the next sample: samples are spread over a round trip
	last    time.Duration // the last round trip
}

type rttSample struct {
	psn  uint32
	sent time.Duration
}

// begin starts a sample of a new packet, if there is room for one.
func (d *rttSamples) begin(psn uint32, now time.Duration) {
	if d.n < len(d.samples) && now >= d.next {
		d.samples[d.n] = rttSample{psn, now}
		d.n++
		d.next = now + d.last/time.Duration(len(d.samples))
	}
}

// cancel abandons the samples from PSN psn on. These packets are retransmitted, and their
// acknowledgements would be ambiguous.
func (d *rttSamples) cancel(psn uint32) {
	for i, t := range d.samples[:d.n] {
		if wire.PSNDiff(t.psn, psn) >= 0 {
			d.n = i
			return
		}
	}
}

// answered completes the samples of packets that have arrived. It returns the round trip of the
// newest one, which triggered the answer.
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
