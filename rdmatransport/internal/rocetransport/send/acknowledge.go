package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// Outcome tells the owner to complete the oldest requests, and then to act.
type Outcome struct {
	Completed int
	Action    Action
	Request   int // FailRequest: index of the request, from the oldest that is not completed
}

// Action is the consequence of an event.
type Action uint8

const (
	Proceed            Action = iota // send what may be sent
	WentBack                         // send, and count a retry: packets in flight are retransmitted
	Probed                           // send, and count a probe
	RetriesExceeded                  // fail the oldest request: retry_cnt is exhausted
	RNRRetriesExceeded               // fail Request: rnr_retry is exhausted
	FailRequest                      // fail Request: the peer refused it
)

// OnResponse is called first for each acknowledgement or response, with its PSN. selective says
// that the sender keeps packets after a gap and reports them. OnResponse returns whether the PSN
// is in flight. If it is not, the packet is a duplicate or forged, and changes nothing.
func (s *State) OnResponse(psn uint32, selective bool) bool {
	if !s.flight.has(psn) || s.mode.is(Failed) {
		return false
	}
	s.mode.setPeer(selective)
	return true
}

// OnCredits is called before OnResponse for an acknowledgement. It gives n credits beyond message
// msn, or none. The last acknowledgement may be repeated with other credits when its PSN is no
// longer in flight.
func (s *State) OnCredits(psn, msn, n uint32, given bool) {
	if wire.PSNDiff(psn, s.flight.una) >= -1 && wire.PSNDiff(psn, s.flight.max) < 0 {
		s.credits.update(msn, n, given)
	}
}

// HasCredits reports whether the peer has given credits.
func (s *State) HasCredits() bool { return s.credits.given }

// OnAck handles an acknowledgement of everything before PSN end.
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

// OnSequenceNAK handles a sequence NAK: the peer misses PSN psn, and keeps nothing after it. isNew
// is false for a repeated NAK.
func (s *State) OnSequenceNAK(psn uint32) (o Outcome, isNew bool) {
	if s.alarm.isSet(RNRWaitEnd) {
		return o, false // nothing is retransmitted before the RNR wait ends
	}
	switch {
	case s.ackBeforeOrGoBack(psn, &o):
		s.goBack(&o)
		isNew = true
	case s.mode.is(Selective) && !s.board.isExecuted(psn):
		// Responses before it are missing.
		s.board.dropped(psn, s.flight.max)
		s.traceLost(psn)
		s.setWindow(s.window.onGoBack())
		isNew = true
	}
	s.probeAnswered(&o)
	return o, isNew
}

// OnSelectiveNAK handles a selective acknowledgement: the peer misses PSN psn, and keeps the
// packets in sack, or sack says which packet was trimmed.
func (s *State) OnSelectiveNAK(psn uint32, sack wire.Sack) (o Outcome, isNew bool) {
	if s.alarm.isSet(RNRWaitEnd) {
		return o, false
	}
	s.ackBeforeOrGoBack(psn, &o)
	s.startRecovery()
	if distance, is := sack.Trimmed(); is {
		s.trimmed(wire.PSNAdd(psn, distance))
	} else {
		s.sacked(psn, sack)
	}
	if s.rttSamples != nil && s.mode.is(Selective) {
		s.onAnswered(func(psn uint32) bool { return s.board.at(psn).is(arrived) })
	}
	s.probeAnswered(&o)
	return o, true
}

// sacked records the packets in a selective acknowledgement of PSN psn.
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
			break // only a forged list continues
		}
		if s.board.sacked(first, inFlight(distance+n)) {
			s.onKept()
		}
	}
	n, all := sack.Covered()
	s.board.reported(inFlight(n+1), all)
}

// OnRNR handles an RNR NAK: the peer asks to wait before PSN psn is sent again. Responses to
// earlier READs may be missing. The requester asks for them again during the wait. isNew is false
// for a repeated NAK, and for a PSN that was already executed.
func (s *State) OnRNR(psn uint32, wait time.Duration) (o Outcome, isNew bool) {
	if s.alarm.isSet(RNRWaitEnd) {
		return o, false
	}
	s.ackBefore(psn, &o)
	recovering := s.mode.is(Selective)
	if recovering && s.board.isExecuted(psn) {
		return o, false
	}
	if !s.retries.onRNRNAK(s.limits.RNRRetries) {
		o.Action, o.Request = RNRRetriesExceeded, s.queue.index(s.queue.find(psn))
		return o, true
	}
	if recovering && psn != s.flight.una {
		s.board.markLost(psn) // only this PSN is sent again: the peer keeps later packets
		s.rtt.cancel()        // the wait says nothing about how late answers are
	} else {
		s.rewind()
		s.change(onRNR)
	}
	s.alarm.setRNR(psn, s.env.Clock()+wait)
	s.traceRNR(psn, wait)
	return o, true
}

// OnRefusal handles a NAK of PSN psn that ends the connection. Requests before psn are still queued
// only because responses are missing. The peer will not send these any more.
func (s *State) OnRefusal(psn uint32) (o Outcome) {
	s.ackBefore(psn, &o)
	o.Action, o.Request = FailRequest, s.queue.index(s.queue.find(psn))
	return o
}

// OnAnswer handles a response to a READ or atomic before it is placed. The response acknowledges
// everything before its request. request is the index of that request, after those that the outcome
// completes. offset is the number of responses before this one. If ok is false, the response is to
// be dropped.
func (s *State) OnAnswer(psn uint32) (request int, offset uint32, o Outcome, ok bool) {
	q := &s.queue
	n := q.find(psn)
	r := q.at(n)
	if r.psn != s.flight.una && !s.ackBeforeOrGoBack(r.psn, &o) && !s.mode.is(Selective) || wire.PSNDiff(psn, s.flight.una) < 0 {
		s.probeAnswered(&o)
		return 0, 0, o, false
	}
	// Responses before it were lost.
	if r.kind.answered() && !s.mode.is(Selective) && psn != s.flight.una {
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

// OnAnswered records that the response that OnAnswer accepted is placed.
func (s *State) OnAnswered(psn uint32) (o Outcome) {
	if s.mode.is(Selective) {
		s.board.answered(psn)
		s.onKept()
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

// ackBeforeOrGoBack acknowledges everything before PSN end, without end itself. If the response to
// a READ or atomic before end is missing, the acknowledgement is an implied NAK. The requester then
// goes back to that request or starts a recovery, and the result is false.
func (s *State) ackBeforeOrGoBack(end uint32, o *Outcome) bool {
	if s.ackBefore(end, o) {
		return true
	}
	if !s.mode.is(Selective) {
		s.goBack(o)
	}
	return false
}

// ackBefore is like ackBeforeOrGoBack, but does not retransmit because of a missing response.
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

// progress moves una: the peer is alive and has everything before it.
func (s *State) progress(una uint32) {
	if s.rttSamples != nil {
		s.onAnswered(func(psn uint32) bool { return wire.PSNDiff(una, psn) > 0 })
	}
	if s.rtt.covers(una) {
		s.learn()
	}
	n := s.flight.acked(una)
	s.acks.acked(una)
	s.retries.reset()
	s.alarm.onProgress()
	s.probe.cancel()
	if s.mode.now != InOrder {
		s.change(onProgress)
	}
	if s.alarm.rnrPSNExecuted(una) {
		s.endRNRWait()
	}
	if size := s.window.clamp(s.window.onAck(n)); size != s.window.size {
		s.setWindow(uint32(size))
	}
	s.reads.acked(una)
}

// onKept is called for an answer that reports packets as kept, or carries responses after a gap.
func (s *State) onKept() {
	if s.rtt.probing() {
		s.learn()
	}
	s.alarm.onResponse()
}

// endRNRWait ends the RNR wait, because the peer has executed the PSN of the RNR NAK.
func (s *State) endRNRWait() {
	s.traceRNR(s.alarm.rnrPSN, 0)
	s.alarm.endRNR()
	s.change(onRNROver)
}
