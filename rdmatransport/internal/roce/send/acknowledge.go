package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// Outcome is what an event has the requester do: first complete so many of the oldest requests,
// then act.
type Outcome struct {
	Completed int
	Action    Action
	Request   int // FailRequest: the place of the request, behind those that are completed
}

// Action is what follows from an event.
type Action uint8

const (
	Proceed            Action = iota // nothing but to send what may be sent
	WentBack                         // the same; what is in flight is sent again, which is counted
	Probed                           // the same; a probe is among it
	RetriesExceeded                  // fail the oldest request: nothing came back, as often as retry_cnt allows
	RNRRetriesExceeded               // fail Request: the peer was not ready for it, as often as rnr_retry allows
	FailRequest                      // fail Request: the peer has refused it
)

// OnResponse is called first for each acknowledgement or response, with its PSN, and with whether
// its sender keeps packets behind a gap and tells of them. It returns whether that PSN is in
// flight: if not, the packet is a duplicate, or an answer to nothing that was sent, and changes
// nothing.
func (s *State) OnResponse(psn uint32, selective bool) bool {
	if !s.flight.has(psn) || s.mode.is(Failed) {
		return false
	}
	s.mode.setPeer(selective)
	return true
}

// OnCredits is called before OnResponse for an acknowledgement that gives n credits beyond message
// msn, or none: the last acknowledgement may come once more with other credits, when its PSN is no
// longer in flight.
func (s *State) OnCredits(psn, msn, n uint32, given bool) {
	if wire.PSNDiff(psn, s.flight.una) >= -1 && wire.PSNDiff(psn, s.flight.max) < 0 {
		s.credits.update(msn, n, given)
	}
}

// HasCredits reports whether the peer has given credits.
func (s *State) HasCredits() bool { return s.credits.given }

// OnAck is told that everything before PSN end is acknowledged.
func (s *State) OnAck(end uint32) (o Outcome) {
	if s.mode.is(Selective) {
		s.board.reportedByAck(end)
	}
	if !s.ackBefore(end, &o) && !s.mode.is(Selective) {
		s.goBack(&o)
	}
	if s.mode.is(Probing) {
		s.probeAnswered(&o)
	}
	return o
}

// OnSequenceNAK is told that the peer misses PSN psn, and keeps nothing of what comes behind it.
// counts reports whether it was news.
func (s *State) OnSequenceNAK(psn uint32) (o Outcome, isNew bool) {
	if s.alarm.isSet(RNR) {
		return o, false // the alarm decides
	}
	switch {
	case s.ackThrough(psn, &o):
		s.goBack(&o)
		isNew = true
	case s.mode.is(Selective) && !s.board.isExecuted(psn):
		// Answers before it are missing.
		s.board.dropped(psn, s.flight.max)
		s.traceLost(psn)
		s.setWindow(s.window.onGoBack())
		isNew = true
	}
	s.probeAnswered(&o)
	return o, isNew
}

// OnSelectiveNAK is told that the peer misses PSN psn, but keeps others behind it. sack tells
// which.
func (s *State) OnSelectiveNAK(psn uint32, sack wire.Sack) (o Outcome, isNew bool) {
	if s.alarm.isSet(RNR) {
		return o, false
	}
	s.ackThrough(psn, &o)
	s.startRecovery()
	s.sacked(psn, sack)
	if s.rttSamples != nil && s.mode.is(Selective) {
		s.onAnswered(func(psn uint32) bool { return s.board.at(psn).is(arrived) })
	}
	s.probeAnswered(&o)
	return o, true
}

// sacked notes what a selective acknowledgement of PSN psn tells.
func (s *State) sacked(psn uint32, sack wire.Sack) {
	f := &s.flight
	inFlight := func(distance uint32) uint32 {
		at := wire.PSNAdd(psn, distance)
		switch {
		case wire.PSNDiff(at, f.una) < 0:
			return f.una
		case wire.PSNDiff(at, f.max) > 0:
			return f.max
		}
		return at
	}
	for distance, n := range sack.All {
		first := inFlight(distance)
		if first == f.max {
			break // only a forged list goes on
		}
		if s.board.sacked(first, inFlight(distance+n)) {
			s.alarm.onResponse()
		}
	}
	n, all := sack.Told()
	s.board.reported(inFlight(n+1), all)
}

// OnRNR is told that the peer asked not to be sent PSN psn and what comes behind it for some time.
// Answers to what comes before it may be missing; they are asked for meanwhile. counts tells
// whether it was news.
func (s *State) OnRNR(psn uint32, wait time.Duration) (o Outcome, isNew bool) {
	if s.alarm.isSet(RNR) {
		return o, false
	}
	s.ackBefore(psn, &o)
	recovering := s.mode.is(Selective)
	if recovering && s.board.isExecuted(psn) {
		return o, false
	}
	if !s.retries.rnrAgain(s.limits.RNR) {
		o.Action, o.Request = RNRRetriesExceeded, s.queue.index(s.queue.find(psn))
		return o, true
	}
	if recovering && psn != s.flight.una {
		s.board.forget(psn) // the peer keeps what comes behind it
	} else {
		s.rewind()
		s.change(onRNR)
	}
	s.alarm.setRNR(psn, s.env.Clock()+wait)
	s.traceRNR(psn, wait)
	return o, true
}

// OnRefusal is told that the peer has ended the connection over PSN psn. A request before that one
// is here only because its answer is missing, or the answer of one before that; the peer will not
// give it any more.
func (s *State) OnRefusal(psn uint32) (o Outcome) {
	s.ackBefore(psn, &o)
	o.Action, o.Request = FailRequest, s.queue.index(s.queue.find(psn))
	return o
}

// OnAnswer is told of a response to a READ or atomic, before it is placed: what comes before the
// request is acknowledged by it. If ok, it belongs to the request at the given place, behind those
// that the outcome completes, and offset is how many packets of the answer come before it; else it
// is to be dropped.
func (s *State) OnAnswer(psn uint32) (request int, offset uint32, o Outcome, ok bool) {
	q := &s.queue
	n := q.find(psn)
	r := q.at(n)
	if r.psn != s.flight.una && !s.ackThrough(r.psn, &o) && !s.mode.is(Selective) || wire.PSNDiff(psn, s.flight.una) < 0 {
		s.probeAnswered(&o)
		return 0, 0, o, false
	}
	if r.kind.answered() && !s.mode.is(Selective) && psn != s.flight.una { // responses before it were lost
		if !s.mode.selective {
			s.goBack(&o)
			s.probeAnswered(&o)
			return 0, 0, o, false
		}
		s.startRecovery()
	}
	ok = !s.mode.is(Selective) || !s.board.at(psn).is(arrived)
	return q.index(n), uint32(wire.PSNDiff(psn, r.psn)), o, ok
}

// OnAnswered is told that the answer that OnAnswer was told of is in place.
func (s *State) OnAnswered(psn uint32) (o Outcome) {
	if s.mode.is(Selective) {
		s.board.answered(psn)
		s.alarm.onResponse()
		if s.rttSamples != nil {
			s.onAnswered(func(at uint32) bool { return at == psn })
		}
		s.settle(&o)
		return o
	}
	past := wire.PSNAdd(psn, 1)
	s.progress(past)
	if r := s.queue.oldest(); past == r.past() {
		o.Completed = s.queue.completeOldest(r)
	} else {
		s.queue.skip(past)
	}
	if s.mode.is(Probing) {
		s.probeAnswered(&o)
	}
	return o
}

// ackThrough takes everything before PSN end as acknowledged. A READ or atomic among it whose
// response did not come makes that an implied NAK: the requester goes back there, or keeps account
// of what is missing, and the result is false.
func (s *State) ackThrough(end uint32, o *Outcome) bool {
	if s.ackBefore(end, o) {
		return true
	}
	if !s.mode.is(Selective) {
		s.goBack(o)
	}
	return false
}

// ackBefore is ackThrough for a NAK, which itself says what is to be sent again: a missing response
// does not make the requester go back.
func (s *State) ackBefore(end uint32, o *Outcome) bool {
	if s.mode.is(Selective) {
		return s.executedBefore(end, o)
	}
	for wire.PSNDiff(end, s.flight.una) > 0 {
		r := s.queue.oldest()
		if r.kind.answered() {
			if s.mode.selective {
				s.startRecovery()
				return s.executedBefore(end, o)
			}
			return false
		}
		past := r.past()
		if wire.PSNDiff(end, past) < 0 {
			s.progress(end)
			s.queue.skip(end)
			return true
		}
		s.progress(past)
		o.Completed += s.queue.completeOldest(r)
	}
	return true
}

// progress moves the window's lower edge: the peer is alive and has everything before una.
func (s *State) progress(una uint32) {
	if s.rttSamples != nil {
		s.onAnswered(func(psn uint32) bool { return wire.PSNDiff(una, psn) > 0 })
	}
	n := s.flight.acked(una)
	s.acks.acked(una)
	s.retries.reset()
	s.alarm.onProgress()
	s.probe.cancel()
	if s.mode.now != InOrder {
		s.change(onProgress)
	}
	if s.alarm.waitEnded(una) {
		s.endRNRWait()
	}
	if size := s.window.clamp(s.window.onAck(n)); size != s.window.size {
		s.setWindow(uint32(size))
	}
	s.reads.acked(una)
	if s.rtt.covers(una) {
		s.rtt.end(s.env.Clock(), s.leastProbe())
	}
}

// endRNRWait ends the RNR wait: the PSN that it is for has turned out to have been executed.
func (s *State) endRNRWait() {
	s.traceRNR(s.alarm.rnrPSN, 0)
	s.alarm.endRNR()
	s.change(onRNROver)
}
