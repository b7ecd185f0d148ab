package send

import "time"

// Deadline returns the time at which OnAlarm must be called, or 0 for never.
func (s *State) Deadline() time.Duration { return s.alarm.next() }

// SetAlarm sets the alarm for packets in flight, after everything that may be sent is sent. sending
// is false if the QP's state forbids sending.
func (s *State) SetAlarm(sending bool) {
	if s.flight.idle() || s.limits.Timeout == 0 {
		s.alarm.restart()
		return
	}
	none := s.alarm.isSet(NoAlarm)
	probe := s.alarm.mayProbe() && (s.rtt.measured() || s.mode.selective) && s.awaitsAnswer()
	if !none && !probe || !sending || s.mode.is(Failed) {
		return
	}
	now := s.env.Clock()
	if none {
		timeout := s.alarm.timeout(s.timeout())
		s.alarm.setRetransmission(now + timeout)
		s.traceAlarm(Retransmission, timeout)
	}
	if probe {
		s.setProbe(now)
	}
}

// OnAlarm handles all alarms that are due.
func (s *State) OnAlarm(now time.Duration) (o Outcome) {
	due := s.alarm.dueAt(now)
	s.traceFired(due)
	switch due {
	case RNRWaitEnd:
		s.traceRNR(s.alarm.rnrPSN, 0)
		s.alarm.endRNR()
		s.change(onRNROver)
	case Retransmission:
		if !s.alarm.postponeLate(now, s.alarm.timeout(s.timeout())) {
			s.traceTimeout()
			s.retry(onTimeout, &o)
		}
	case Probe:
		s.sendProbe(now)
		o.Action = Probed
	}
	return o
}

// goBack handles a sequence NAK of una, explicit or implied, from a peer that keeps nothing after
// a gap.
func (s *State) goBack(o *Outcome) {
	if !s.mode.is(GoneBack) && !s.mode.is(RNRWait) {
		s.retry(onNAK, o)
	}
}

// retry retransmits everything from una on, if retry_cnt allows another retry.
func (s *State) retry(e modeEvent, o *Outcome) {
	if !s.retries.onTimeoutOrNAK(s.limits.Retries) {
		o.Action = RetriesExceeded
		return
	}
	s.alarm.onRetry(e)
	s.traceLost(s.flight.una)
	if e == onTimeout {
		s.setWindow(s.window.onTimeout())
	} else {
		s.setWindow(s.window.onGoBack())
	}
	s.rewind()
	s.change(e)
	o.Action = WentBack
}

// rewind moves the cursor back to una, which is in the oldest request. The retransmission gets a
// new timeout.
func (s *State) rewind() {
	una := s.flight.una
	s.board.close()
	s.rtt.cancel()
	if s.rttSamples != nil {
		s.rttSamples.cancel(una)
	}
	s.acks.rewind(una)
	s.queue.rewind(una)
	s.reads.rewind()
	s.alarm.restart()
	s.probe.cancel()
}

// sendProbe schedules a probe, which does not count as a retry. The next probe waits twice as long.
func (s *State) sendProbe(now time.Duration) {
	s.rtt.backOff()
	s.alarm.probed()
	if s.alarm.mayProbe() {
		s.setProbe(now)
	}
	if s.mode.selective || s.mode.is(Selective) {
		s.startRecovery()
		s.board.loseTail(s.flight.una, s.flight.max)
	} else {
		s.probe.schedule()
	}
	s.rtt.dueProbe()
	s.traceProbe()
}

// probeAnswered goes back to the packet after the probe if the peer has nothing beyond the probe:
// it has dropped the rest. But the peer may be slow, and still answer packets from before the
// probe. The window therefore stays small until more answers arrive.
func (s *State) probeAnswered(o *Outcome) {
	if !s.mode.is(Probing) {
		return
	}
	answered, alone := s.probe.answered(s.flight.una)
	if !answered {
		return
	}
	s.change(onProbeOver)
	if alone && !s.mode.selective && o.Action == Proceed {
		s.traceLost(s.flight.una)
		s.setWindow(s.window.onTailLoss())
		s.rewind()
		o.Action = WentBack
	}
}

// setProbe sets the probe alarm.
func (s *State) setProbe(now time.Duration) {
	likely, least, most := s.rtt.likely(), backProbeWait, backProbeWait
	if s.mode.selective {
		least, most = granularity, min(probeWait, s.timeout()/2)
	}
	share := s.timeout() / probeShare
	if !s.rtt.measured() {
		likely = share
	}
	if !s.env.Answers.known() {
		likely = max(likely, min(share, most), s.env.Allowance(most))
	}
	after := s.rtt.probeTimeout(s.env.Answers.wait(likely, s.env.Allowance(least), most))
	s.alarm.setProbe(now + after)
	s.traceAlarm(Probe, after)
}

// learn records the round trip of an answer that is measured, or comes after a probe, and how late
// it was. The alarm still has the time from which the answer was awaited.
func (s *State) learn() {
	now := s.env.Clock()
	var late time.Duration
	var known bool
	switch {
	case !s.rtt.probing():
		late, known = s.rtt.end(now)
	case s.alarm.isSet(Retransmission):
		late, known = s.rtt.endProbe(now, s.alarm.due-s.alarm.timeout(s.timeout()))
	default: // in an RNR wait
		s.rtt.cancel()
	}
	if known {
		s.env.Answers.add(late, now)
	}
}

// timeout returns the timeout of the QP's attributes, with the allowance.
func (s *State) timeout() time.Duration { return max(s.limits.Timeout, s.env.Allowance(minTimeout)) }
