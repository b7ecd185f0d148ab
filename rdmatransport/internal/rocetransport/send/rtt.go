package send

import (
	"math"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// rtt estimates the round-trip time and its deviation (RFC 6298 §2, §3). Only packets that request
// an answer are measured (RFC 9002 §5.1). The first sixteen are, one at a time, and later every
// sixteenth: reading the clock costs as much as sending a small packet.
//
// It also tells how late answers are, after the longest likely round trip, for LateAnswers.
type rtt struct {
	start    time.Duration // when the measured packet, or the last probe, was sent
	psn      uint32        // PSN of the measured packet
	smoothed eighths       // 0 before the first measurement
	variance eighths       // mean deviation
	shortest uint16        // eighths of all round trips, or the most that fit, 8 ms
	await    awaited
	// How many were measured since a probe, up to sampled. Beyond, the rest is how many packets are
	// not to be measured next. If none was measured since a probe, turn is what setProbes says.
	turn int8
}

// awaited is what an rtt awaits the answer to.
type awaited uint8

const (
	nothing   awaited = iota
	measured          // a packet that is measured
	probeDue          // a packet, with a probe that is due but not yet sent
	probeSent         // a probe, or a packet before it
)

// eighths is a duration in eighths of a microsecond, from one to nine minutes. It is small because
// there are many QPs, most of them idle. In whole microseconds, the mean of short round trips would
// stay near the least of them.
type eighths uint32

const eighth = time.Microsecond / 8

func inEighths(d time.Duration) eighths {
	return eighths(min(max((d+eighth/2)/eighth, 1), 1<<32-1))
}

func (e eighths) duration() time.Duration { return time.Duration(e) * eighth }

const (
	sampled     = 16
	mostDoubled = 20 // a microsecond becomes a second, and an hour does not overflow
	mostUsual   = 6  // see endProbe; with mostDoubled, turn holds both
)

func (t *rtt) reset() { *t = rtt{} }

// wanted is called for each new packet that requests an answer, and reports whether it should be
// measured.
func (t *rtt) wanted() bool {
	switch {
	case t.await != nothing:
		return false
	case t.turn > sampled:
		t.turn--
		return false
	}
	return true
}

// begin starts the measurement of a packet.
func (t *rtt) begin(psn uint32, now time.Duration) { t.psn, t.start, t.await = psn, now, measured }

// cancel abandons the measurement of a retransmitted packet. Its acknowledgement would be ambiguous
// (Karn's algorithm).
func (t *rtt) cancel() { t.await = nothing }

// probing reports whether a probe is due or was sent, and no answer has come since.
func (t *rtt) probing() bool { return t.await >= probeDue }

// covers reports whether an acknowledgement of everything before una completes the measurement, or
// the wait after a probe.
func (t *rtt) covers(una uint32) bool {
	return t.probing() || t.await == measured && wire.PSNDiff(una, t.psn) > 0
}

// end completes the measurement and updates the estimate. It returns how late the answer came, if
// an earlier estimate says so.
func (t *rtt) end(now time.Duration) (late time.Duration, known bool) {
	took := now - t.start
	late, known = max(took-t.likely(), 0), t.measured()
	smoothed, variance := t.smoothed.duration(), t.variance.duration()
	if !known {
		smoothed, variance, t.shortest = took, took/2, math.MaxUint16
	} else {
		variance += ((took - smoothed).Abs() - variance) / 4
		smoothed += (took - smoothed) / 8
	}
	t.smoothed, t.variance = inEighths(smoothed), inEighths(variance)
	t.shortest = uint16(min(eighths(t.shortest), inEighths(took)))
	t.await = nothing
	if t.turn = max(t.turn, 0) + 1; t.turn >= sampled {
		t.turn = 2*sampled - 1
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
	return min(min(first, time.Hour)<<t.doubled(), time.Hour)
}

// setProbes records, with no round trip measured since, how many times the probe timeout was
// doubled since the peer was prompt, and how many probes in turn were answered as usual.
func (t *rtt) setProbes(doubled, usual int8) { t.turn = -(mostUsual*doubled + usual) }

func (t *rtt) doubled() int8 { return max(-t.turn, 0) / mostUsual }
func (t *rtt) usual() int8   { return max(-t.turn, 0) % mostUsual }

// backOff doubles the probe timeout until the next measurement, which is to come soon, or until a
// probe is answered in time. The peer may have become slower (RFC 6298 §5.5).
func (t *rtt) backOff() {
	t.setProbes(min(t.doubled()+1, mostDoubled), t.usual())
}

// dueProbe says that a probe is to be sent. A measurement is abandoned.
func (t *rtt) dueProbe() { t.await = probeDue }

// sentProbe says that the probe was sent. It may have waited, for the rate or for the adapter.
func (t *rtt) sentProbe(now time.Duration) { t.start, t.await = now, probeSent }

// endProbe ends the wait for an answer while a probe is due, or after it, with the first answer.
// That was awaited since the given time. endProbe returns how late it was, if that is known:
//
//   - Before the probe was sent, it is an answer to a packet before the probe. So it is within half
//     of the shortest round trip, also if queues have become empty, unless it answers an earlier
//     probe.
//   - After the longest likely round trip it is late, even if it is the answer to the probe.
//   - Otherwise the probe was answered as usual. The next probe need not wait longer: where many
//     packets are lost, none may be measured for a while. But it may also be a late answer to a
//     packet before the probe, if round trips have become longer by about a probe timeout. So after
//     the last of mostUsual in turn the next one does wait longer, and a slower peer's round trip
//     is measured.
func (t *rtt) endProbe(now, since time.Duration) (late time.Duration, known bool) {
	sent, after, likely := t.await == probeSent, now-t.start, t.likely()
	t.cancel()
	switch {
	case !t.measured():
		return 0, false
	case !sent, after < eighths(t.shortest).duration()/2 && t.doubled() == 1:
		return max(now-since-likely, 0), true
	case after > likely:
		return after - likely, true
	}
	if usual := t.usual() + 1; usual < mostUsual {
		t.setProbes(0, usual)
	} else {
		t.setProbes(t.doubled(), 0)
	}
	return 0, false
}
