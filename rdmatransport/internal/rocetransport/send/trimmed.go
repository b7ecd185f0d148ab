package send

import "time"

// A switch may cut a packet to its headers, in place of dropping it. The receiver learns from these
// that the packet is lost, before any packet that was sent later arrives.

// Hints bounds the number of trimmed packets that cause answers: anyone can forge them, and each
// makes the sender repeat a packet. A path whose packets are all trimmed causes fewer.
type Hints struct {
	since time.Duration
	n     uint32
}

// hintPeriod is the time in which the packets of a window may be trimmed once.
const hintPeriod = 50 * time.Microsecond

// Allow counts a hint, and reports whether it may cause an answer: at most that many do in a
// period.
func (h *Hints) Allow(now time.Duration, most uint32) bool {
	if now-h.since >= hintPeriod || now < h.since {
		*h = Hints{since: now}
	}
	h.n++
	return h.n <= most
}

// trimmed records that the packet of a SEND or WRITE with a PSN was trimmed, as the peer says in a
// selective acknowledgement. The probe waits from now on: this is an answer. But the timeout does
// not, as nothing has arrived.
func (s *State) trimmed(psn uint32) {
	if !s.mode.is(Selective) || !s.flight.has(psn) || s.board.isExecuted(psn) {
		return
	}
	if at := s.board.at(psn); at.unknown() && !at.is(answer) {
		if s.rtt.probing() {
			s.learn()
		}
		s.window.allowSmall()
		s.loseTrimmed(psn)
	}
}

func (s *State) loseTrimmed(psn uint32) {
	s.board.lose(psn)
	s.alarm.onTrimmed()
	s.traceLostCount(1)
	s.setWindow(s.window.onLoss(1))
}

// OnTrimmedAnswer handles a READ response that has lost its end and its ICRC on the way. selective
// is that of OnResponse. It is a hint: anyone can forge it. So nothing counts as answered. The
// response is requested again, and the window becomes smaller, as for any loss. Going back also
// uses a retry. It returns false if nothing is requested.
func (s *State) OnTrimmedAnswer(psn uint32, selective bool) (o Outcome, used bool) {
	stopped := s.mode.is(Failed) || s.alarm.isSet(RNRWaitEnd)
	if stopped || !s.flight.has(psn) || s.mode.selective && !selective {
		return o, false
	}
	if s.queue.at(s.queue.find(psn)).kind != Read || !s.reads.mayHint(s.env.Clock(), s.window.span) {
		return o, false
	}
	if !selective {
		// Earlier responses may still arrive. The last retry is not for hints.
		if psn != s.flight.una || s.mode.now != InOrder || s.retries.left(s.limits.Retries) <= 1 {
			return o, false
		}
		s.goBack(&o)
		return o, true
	}
	s.startRecovery()
	at := s.board.at(psn)
	if !at.is(answer) || !at.unknown() {
		return o, false
	}
	s.rtt.cancel() // the response that comes is to what is sent now, not to a probe
	s.loseTrimmed(psn)
	return o, true
}
