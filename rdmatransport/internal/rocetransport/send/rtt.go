package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// rtt estimates the round-trip time (RFC 6298 §2, §3) and derives the probe timeout from it. Short
// round trips are measured only once: their exact value does not matter, and reading the clock
// costs as much as sending a small packet.
type rtt struct {
	start    time.Duration // when the measured packet was sent; 0 if none is measured
	psn      uint32        // PSN of the measured packet
	smoothed micros        // 0 before the first measurement
	variance micros        // mean deviation
	pto      micros        // probe timeout; 0 before the first measurement
}

// micros is a duration in microseconds, from one to an hour. It is small because there are many
// QPs, most of them idle.
type micros uint32

func inMicros(d time.Duration) micros {
	return micros(min(max(d.Microseconds(), 1), int64(time.Hour/time.Microsecond)))
}

func (m micros) duration() time.Duration { return time.Duration(m) * time.Microsecond }

func (t *rtt) reset() { *t = rtt{} }

// wanted reports whether the next new packet should be measured. least is the shortest probe
// timeout. If it is 0, as in a simulation, nothing is measured before a probe was sent. Probes
// after the likely round trip disturb flows whose packets wait in queues or for the end of a
// pause.
func (t *rtt) wanted(least time.Duration) bool { return t.start == 0 && t.pto.duration() != least }

// begin starts the measurement of a packet.
func (t *rtt) begin(psn uint32, now time.Duration) { t.psn, t.start = psn, now }

// cancel abandons the measurement of a retransmitted packet. Its acknowledgement would be ambiguous
// (Karn's algorithm).
func (t *rtt) cancel() { t.start = 0 }

// covers reports whether an acknowledgement of everything before una completes the measurement.
func (t *rtt) covers(una uint32) bool { return t.start != 0 && wire.PSNDiff(una, t.psn) > 0 }

// end completes the measurement and updates the estimate.
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

// probeTimeout returns how long to wait for an answer before a probe.
func (t *rtt) probeTimeout(timeout, least time.Duration) time.Duration {
	if t.pto != 0 {
		return t.pto.duration()
	}
	return max(timeout/probeShare, least)
}

// backOff doubles the probe timeout until the next measurement. The peer may have become slower.
func (t *rtt) backOff(timeout, least time.Duration) {
	t.pto = inMicros(2 * t.probeTimeout(timeout, least))
	t.start = 0
}
