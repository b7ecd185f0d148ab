package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// rtt estimates the round trip (RFC 6298 §2, §3), and from that how long to wait for an answer
// before a probe is sent. While round trips are short there is no measurement after the first:
// nothing depends on how short, and reading the clock costs as much as sending a small packet.
type rtt struct {
	start    time.Duration // when the packet was sent that is being measured; 0 if none is
	psn      uint32        // its PSN
	smoothed micros        // 0 if none was measured
	variance micros        // mean deviation from it
	pto      micros        // probe timeout; 0 if no round trip was measured
}

// micros is a time of whole microseconds, at least one and an hour at most: QPs are many, and
// mostly idle.
type micros uint32

func inMicros(d time.Duration) micros {
	return micros(min(max(d.Microseconds(), 1), int64(time.Hour/time.Microsecond)))
}

func (m micros) duration() time.Duration { return time.Duration(m) * time.Microsecond }

func (t *rtt) reset() { *t = rtt{} }

// wanted reports whether the next packet that is sent for the first time should be measured; least
// is the shortest probe timeout.
func (t *rtt) wanted(least time.Duration) bool { return t.start == 0 && t.pto.duration() != least }

// begin notes that the packet to measure was sent.
func (t *rtt) begin(psn uint32, now time.Duration) { t.psn, t.start = psn, now }

// cancel gives a measurement up, as its packet is sent again: nobody could tell which transmission
// an answer is to (Karn's algorithm).
func (t *rtt) cancel() { t.start = 0 }

// covers reports whether an acknowledgement of everything before una ends the measurement.
func (t *rtt) covers(una uint32) bool { return t.start != 0 && wire.PSNDiff(una, t.psn) > 0 }

// end updates the estimate with the measurement.
func (t *rtt) end(now, least time.Duration) {
	took := now - t.start
	t.start = 0
	smoothed, variance := t.smoothed.duration(), t.variance.duration()
	if smoothed == 0 {
		smoothed, variance = took, took/2
	} else {
		variance += ((took - smoothed).Abs() - variance) / 4
		smoothed += (took - smoothed) / 8
	}
	t.smoothed, t.variance = inMicros(smoothed), inMicros(variance)
	t.pto = inMicros(max(smoothed+max(4*variance, smoothed/2), least))
}

// measured reports whether a round trip was ever measured.
func (t *rtt) measured() bool { return t.pto != 0 }

// probeTimeout is how long to wait for an answer before there is a probe.
func (t *rtt) probeTimeout(timeout, least time.Duration) time.Duration {
	if t.pto != 0 {
		return t.pto.duration()
	}
	return max(timeout/probeShare, least)
}

// backOff doubles the probe timeout until a round trip without a probe was measured: the peer may
// have become slower.
func (t *rtt) backOff(timeout, least time.Duration) {
	t.pto = inMicros(2 * t.probeTimeout(timeout, least))
	t.start = 0
}
