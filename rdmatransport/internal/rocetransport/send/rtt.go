package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// rtt estimates the round-trip time and its deviation (RFC 6298 §2, §3). Only packets that request
// an answer are measured (RFC 9002 §5.1). The first sixteen are, one at a time, and later every
// sixteenth: reading the clock costs as much as sending a small packet.
//
// It also tells how late answers are, after the longest likely round trip, for LateAnswers.
type rtt struct {
	start    time.Duration // when the measured packet, or the last probe, was sent; 0 if neither was
	psn      uint32        // PSN of the measured packet
	smoothed micros        // 0 before the first measurement
	variance micros        // mean deviation
	doubled  uint8         // how many times the probe timeout was doubled since the last measurement
	measures uint8         // measurements in turn, up to sampled
	skip     uint8         // packets before the next one
	probed   bool          // start is the time of a probe
}

// micros is a duration in microseconds, from one to an hour. It is small because there are many
// QPs, most of them idle.
type micros uint32

func inMicros(d time.Duration) micros {
	return micros(min(max(d.Microseconds(), 1), int64(time.Hour/time.Microsecond)))
}

func (m micros) duration() time.Duration { return time.Duration(m) * time.Microsecond }

const (
	sampled     = 16
	mostDoubled = 20 // a microsecond becomes a second, and an hour does not overflow
)

func (t *rtt) reset() { *t = rtt{} }

// wanted is called for each new packet that requests an answer, and reports whether it should be
// measured.
func (t *rtt) wanted() bool {
	switch {
	case t.start != 0:
		return false
	case t.skip > 0:
		t.skip--
		return false
	}
	return true
}

// begin starts the measurement of a packet.
func (t *rtt) begin(psn uint32, now time.Duration) { t.psn, t.start = psn, now }

// cancel abandons the measurement of a retransmitted packet. Its acknowledgement would be ambiguous
// (Karn's algorithm).
func (t *rtt) cancel() { t.start, t.probed = 0, false }

// covers reports whether an acknowledgement of everything before una completes the measurement, or
// the wait after a probe.
func (t *rtt) covers(una uint32) bool {
	return t.start != 0 && (t.probed || wire.PSNDiff(una, t.psn) > 0)
}

// end completes the measurement and updates the estimate. It returns how late the answer came, if
// an earlier estimate says so.
func (t *rtt) end(now time.Duration) (late time.Duration, known bool) {
	took := now - t.start
	late, known = max(took-t.likely(), 0), t.measured()
	smoothed, variance := t.smoothed.duration(), t.variance.duration()
	if !known {
		smoothed, variance = took, took/2
	} else {
		variance += ((took - smoothed).Abs() - variance) / 4
		smoothed += (took - smoothed) / 8
	}
	t.smoothed, t.variance = inMicros(smoothed), inMicros(variance)
	t.start, t.doubled = 0, 0
	if t.measures++; t.measures >= sampled {
		t.measures, t.skip = sampled, sampled-1
	}
	return late, known
}

// measured reports whether a round trip was ever measured.
func (t *rtt) measured() bool { return t.smoothed != 0 }

// likely returns the longest likely round trip; 0 if none was measured.
func (t *rtt) likely() time.Duration {
	smoothed := t.smoothed.duration()
	return smoothed + max(4*t.variance.duration(), smoothed/2)
}

// probeTimeout returns how long to wait for an answer before a probe. first is the time to wait if
// none was sent yet.
func (t *rtt) probeTimeout(first time.Duration) time.Duration {
	return min(first<<t.doubled, time.Hour)
}

// backOff doubles the probe timeout until the next measurement, as the peer may have become slower
// (RFC 6298 §5.5), and that measurement is to come soon.
func (t *rtt) backOff() {
	t.doubled, t.measures, t.skip = min(t.doubled+1, mostDoubled), 0, 0
}

// beginProbe begins the wait after a probe. A measurement is abandoned.
func (t *rtt) beginProbe(now time.Duration) { t.start, t.probed = now, true }

// endProbe ends the wait after a probe, with the first answer since. The answer was awaited since
// the given time. It is that to the probe, or a late one to a packet before it. endProbe returns
// how late it was in any case. An answer that comes sooner than one to the probe could is to a
// packet before it. One that comes later than one to the probe should is late even as that. Others
// say nothing.
func (t *rtt) endProbe(now, since time.Duration) (late time.Duration, known bool) {
	after, likely := now-t.start, t.likely()
	t.cancel()
	switch {
	case !t.measured():
		return 0, false
	case after < t.smoothed.duration()/2:
		return max(now-since-likely, 0), true
	case after > likely:
		return after - likely, true
	}
	return 0, false
}
