package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// AlarmKind is what an alarm is for.
type AlarmKind uint8

const (
	// NoAlarm is none of those below.
	NoAlarm AlarmKind = iota
	// RNR ends the time for which the peer asked to be left alone.
	RNR
	// Retransmission: una is overdue, and everything from there on is sent again.
	Retransmission
	// Probe: nothing was heard for longer than a round trip takes, and one packet is sent again.
	Probe
)

func (k AlarmKind) String() string { return [...]string{"none", "RNR", "retransmission", "probe"}[k] }

// alarm is the one alarm that sending has. Of its kinds, RNR runs alone; Retransmission runs while
// anything is in flight, and Probe goes off before it.
type alarm struct {
	due        time.Duration // when RNR or Retransmission is due; 0 if neither is set
	probeDue   time.Duration // when Probe is; 0 if it is not set
	kind       AlarmKind     // what due is for
	probesSent uint8         // that were sent since the last sign of life; a timeout does not reset it
	postponed  bool          // a retransmission timeout that came late was not taken for a loss, and no progress since
	rnrPSN     uint32        // while RNR is set, nothing is sent from this PSN on
}

func (a *alarm) reset() { *a = alarm{} }

// next is when the alarm goes off, 0 if it does not.
func (a *alarm) next() time.Duration {
	if a.probeDue != 0 && a.probeDue < a.due {
		return a.probeDue
	}
	return a.due
}

// dueAt is what is due at a time.
func (a *alarm) dueAt(now time.Duration) AlarmKind {
	switch {
	case a.due != 0 && a.due <= now:
		return a.kind
	case a.probeDue != 0 && a.probeDue <= now:
		return Probe
	}
	return NoAlarm
}

// isSet reports whether RNR or Retransmission is set.
func (a *alarm) isSet(k AlarmKind) bool { return a.kind == k }

func (a *alarm) setRetransmission(due time.Duration) { a.kind, a.due = Retransmission, due }
func (a *alarm) setProbe(due time.Duration)          { a.probeDue = due }

// setRNR keeps what comes from psn on until the given time.
func (a *alarm) setRNR(psn uint32, until time.Duration) {
	a.kind, a.due, a.probeDue, a.rnrPSN = RNR, until, 0, psn
}

// waits reports whether a PSN may not be sent for the time being.
func (a *alarm) blocks(psn uint32) bool { return a.kind == RNR && wire.PSNDiff(psn, a.rnrPSN) >= 0 }

// waitEnded reports whether the PSN that an RNR NAK named turns out to have been executed, as
// everything before end was.
func (a *alarm) waitEnded(end uint32) bool { return a.kind == RNR && wire.PSNDiff(end, a.rnrPSN) > 0 }

// endRNR ends that wait.
func (a *alarm) endRNR() { a.kind, a.due = NoAlarm, 0 }

// restart unsets what waits for an answer; it is set anew where anything is in flight.
func (a *alarm) restart() {
	if a.kind == Retransmission {
		a.kind, a.due = NoAlarm, 0
	}
	a.probeDue = 0
}

// signOfLife notes that the peer has something new: acknowledged, kept or answered. What waits for
// an answer begins anew. A NAK that brings nothing new is no sign of life.
func (a *alarm) onResponse() {
	a.restart()
	a.probesSent = 0
}

// progress is signOfLife where the peer has acknowledged more.
func (a *alarm) onProgress() {
	a.onResponse()
	a.postponed = false
}

// excuse reports whether a retransmission timeout that is noticed at the time now is not to be
// taken for a loss, and then postpones it. If the alarm goes off late, this process has not run for
// a while, and the answer may be waiting to be received.
func (a *alarm) postponeLate(now, timeout time.Duration) bool {
	if now-a.due <= timeout/2 || a.postponed {
		return false
	}
	a.postponed = true
	a.due = now + timeout
	return true
}

// mayProbe reports whether there may be another probe before a sign of life.
func (a *alarm) mayProbe() bool { return a.probesSent < maxProbes }

// probed counts a probe.
func (a *alarm) probed() {
	a.probesSent++
	a.probeDue = 0
}
