package send

import "github.com/softrnic/softrnic/rdmatransport/wire"

// board is the scoreboard of a QP, while it has one.
type board struct {
	*scoreboard // nil unless the mode is Selective
}

func (b *board) open(una, span uint32) { b.scoreboard = newScoreboard(una, span) }

func (b *board) close() {
	if b.scoreboard != nil {
		b.scoreboard.release()
		b.scoreboard = nil
	}
}

// startRecovery enters mode Selective and starts to track each PSN. Until then, packets were sent
// in the order of their PSNs. Packets that a requester has gone back for, and has not yet sent
// again, are lost.
func (s *State) startRecovery() {
	if s.mode.is(Selective) {
		return
	}
	q, f := &s.queue, &s.flight
	sent := f.max
	if psn, ok := q.position(); ok {
		sent = psn
	}
	s.board.open(f.una, s.window.span)
	for n := q.first; n != q.end; n++ {
		r := q.at(n)
		if !r.is(started) || wire.PSNDiff(r.psn, f.max) >= 0 {
			break
		}
		if r.kind == Local {
			continue
		}
		first, past := r.psn, r.past()
		if wire.PSNDiff(f.una, first) > 0 {
			first = f.una
		}
		if wire.PSNDiff(past, f.max) > 0 {
			past = f.max
		}
		s.board.enter(first, past, sent, r.kind.answered())
	}
	for _, last := range s.reads.all() { // pieces of READs
		if next := wire.PSNAdd(last, 1); f.has(next) {
			s.board.enterHead(next)
		}
	}
	s.board.entered(f.una, f.max)
	q.forward(f.max) // earlier packets are retransmitted from the scoreboard
	s.reads.resume()
	s.rtt.cancel()
	s.change(onGap)
}

// executedBefore records that the peer has executed everything before PSN end. It returns whether
// all of that is acknowledged, with no response missing.
func (s *State) executedBefore(end uint32, o *Outcome) bool {
	s.board.executedBefore(end)
	if s.alarm.rnrPSNExecuted(s.board.executed) {
		s.endRNRWait()
	}
	s.settle(o)
	return wire.PSNDiff(s.flight.una, end) >= 0
}

// settle completes requests in order, and ends the recovery when nothing is missing.
func (s *State) settle(o *Outcome) {
	f := &s.flight
	for !f.idle() {
		r := s.queue.oldest()
		past := r.past()
		limit := past
		if wire.PSNDiff(past, f.max) > 0 {
			limit = f.max
		}
		una := s.board.acked(f.una, limit)
		if una == f.una {
			break
		}
		s.progress(una)
		if una != past {
			s.queue.skip(una)
			break
		}
		o.Completed += s.queue.completeOldest(r)
	}
	s.board.advance(f.una)
	if f.idle() || s.board.complete(f.una) {
		s.endRecovery()
	}
}

// endRecovery leaves mode Selective. There is no RNR wait at that time, as a PSN that waits counts
// as missing.
func (s *State) endRecovery() {
	s.board.close()
	s.change(onRecovered)
}

// DetectLosses is called after all packets of a frame are processed. Packets that they prove lost
// will be retransmitted.
func (s *State) DetectLosses() {
	if s.mode.is(Selective) {
		s.detectLosses()
	}
}

func (s *State) detectLosses() {
	if lost := s.board.detectLosses(s.flight.una, s.flight.max); lost > 0 {
		s.traceLostCount(lost)
		s.setWindow(s.window.onLoss(lost))
	}
}
