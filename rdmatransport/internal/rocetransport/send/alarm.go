package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// AlarmKind is the purpose of an alarm.
type AlarmKind uint8

const (
	// NoAlarm means that no alarm is set.
	NoAlarm AlarmKind = iota
	// RNRWaitEnd ends the wait after an RNR NAK.
	RNRWaitEnd
	// Retransmission: una has timed out. Everything from una on is retransmitted.
	Retransmission
	// Probe: no answer has come for longer than a round trip. One packet is retransmitted.
	Probe
)

func (k AlarmKind) String() string {
	return [...]string{"none", "RNR wait", "retransmission", "probe"}[k]
}

// alarm holds the timers of the send state. During an RNR wait no other is set. Retransmission is
// set while packets are in flight, and Probe goes off before it.
type alarm struct {
	due        time.Duration // when RNRWaitEnd or Retransmission is due; 0 if neither is set
	probeDue   time.Duration // when Probe is due; 0 if it is not set
	kind       AlarmKind     // the kind of due
	probesSent uint8         // probes since the last new answer; a timeout does not reset it
	postponed  bool          // a late retransmission timeout was postponed, with no progress since
	timeouts   uint8         // timeouts in turn: with no progress and no NAK since
	rnrPSN     uint32        // in an RNR wait, nothing is sent from this PSN on
}

func (a *alarm) reset() { *a = alarm{} }

// next returns when the alarm goes off; 0 if it is not set.
func (a *alarm) next() time.Duration {
	if a.probeDue != 0 && a.probeDue < a.due {
		return a.probeDue
	}
	return a.due
}

// dueAt returns the alarm that is due at a time.
func (a *alarm) dueAt(now time.Duration) AlarmKind {
	switch {
	case a.due != 0 && a.due <= now:
		return a.kind
	case a.probeDue != 0 && a.probeDue <= now:
		return Probe
	}
	return NoAlarm
}

// isSet reports whether the timer in due is of kind k, which is RNRWaitEnd or Retransmission.
func (a *alarm) isSet(k AlarmKind) bool { return a.kind == k }

func (a *alarm) setRetransmission(due time.Duration) { a.kind, a.due = Retransmission, due }
func (a *alarm) setProbe(due time.Duration)          { a.probeDue = due }

// setRNR delays everything from psn on until the given time.
func (a *alarm) setRNR(psn uint32, until time.Duration) {
	a.kind, a.due, a.probeDue, a.rnrPSN, a.timeouts = RNRWaitEnd, until, 0, psn, 0
}

// blocks reports whether an RNR wait blocks a PSN.
func (a *alarm) blocks(psn uint32) bool {
	return a.kind == RNRWaitEnd && wire.PSNDiff(psn, a.rnrPSN) >= 0
}

// rnrPSNExecuted reports whether the PSN of the RNR NAK is among those before end, which the peer
// has executed. The wait is then over.
func (a *alarm) rnrPSNExecuted(end uint32) bool {
	return a.kind == RNRWaitEnd && wire.PSNDiff(end, a.rnrPSN) > 0
}

// endRNR ends the RNR wait.
func (a *alarm) endRNR() { a.kind, a.due = NoAlarm, 0 }

// restart clears the timeouts, which are set again if anything is in flight.
func (a *alarm) restart() {
	if a.kind == Retransmission {
		a.kind, a.due = NoAlarm, 0
	}
	a.probeDue = 0
}

// onResponse records an answer that acknowledges a packet, reports one as kept, or carries a new
// response. Timeouts restart. A NAK that does none of these is not an answer in this sense.
func (a *alarm) onResponse() {
	a.restart()
	a.probesSent = 0
}

// onTrimmed records that the peer says which packet was trimmed. The next probe waits anew.
func (a *alarm) onTrimmed() { a.probeDue = 0 }

// onProgress is onResponse if una advances.
func (a *alarm) onProgress() {
	a.onResponse()
	a.postponed, a.timeouts = false, 0
}

// onRetry counts a timeout in turn. A sequence NAK shows that the peer is not late.
func (a *alarm) onRetry(e modeEvent) {
	if e == onTimeout {
		a.timeouts++
	} else {
		a.timeouts = 0
	}
}

// timeout returns the timeout T, doubled for each timeout in turn, up to 4T or lateAnswer. IBTA Vol
// 1 §9.7.6.1.3 allows any time between T and 4T.
func (a *alarm) timeout(T time.Duration) time.Duration {
	return max(T, min(T<<min(a.timeouts, 2), lateAnswer))
}

// postponeLate postpones a retransmission timeout if it is late, and reports whether it did. A late
// alarm means that this process was not scheduled for a while. The answer may wait in the receive
// queue.
func (a *alarm) postponeLate(now, timeout time.Duration) bool {
	if now-a.due <= timeout/2 || a.postponed {
		return false
	}
	a.postponed = true
	a.due = now + timeout
	return true
}

// mayProbe reports whether the timer of another probe may be set before a new answer.
func (a *alarm) mayProbe() bool {
	return a.probeDue == 0 && a.kind != RNRWaitEnd && a.probesSent < maxProbes
}

// probed counts a probe.
func (a *alarm) probed() {
	a.probesSent++
	a.probeDue = 0
}
