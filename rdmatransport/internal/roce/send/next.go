package send

import "github.com/softrnic/softrnic/rdmatransport/roce/wire"

// Step is what the requester does next.
type Step uint8

const (
	Wait         Step = iota // nothing: an event has to come first
	Transmit                 // send the packets of the Burst
	ExecuteLocal             // execute a local request, and tell by LocalExecuted or Fail
	Refuse                   // Fail a request that could never be sent: it has an answer, and the QP may have none outstanding
	GiveUp                   // fail the QP: the oldest request has failed, for the Reason
)

// Burst is consecutive packets of one request that may be sent.
type Burst struct {
	origin    origin
	Kind      Kind   // of the request
	AckReq    bool   // the last packet asks for an acknowledgement
	EndsFrame bool   // its frame is to end with it: it is longer than the packets behind it, which fill whole frames
	Final     bool   // once it is sent, Next says Wait: the window is full, in the middle of a request
	Reason    uint8  // to GiveUp: what Fail was told
	Request   int    // place of the request behind the oldest
	Packet    uint32 // first packet to be sent, of the request's
	PSN       uint32 // and its PSN
	Packets   uint32 // how many PSNs; for a READ, how many are asked for with one request packet
}

// origin is why a burst is sent.
type origin uint8

const (
	fromCursor     origin = iota // it is the cursor's turn
	fromScoreboard               // it was lost
	fromProbe                    // the peer has been silent
	fromAckReq                   // it was sent, and is to ask for an acknowledgement after all
)

// Repeats reports whether the packets were sent before, and are sent again one by one.
func (b *Burst) Repeats() bool { return b.origin == fromScoreboard }

// Setting is what the owner of the State knows about the QP, and what bears on what may be sent.
type Setting uint8

const (
	Draining Setting = 1 << iota // no request is begun any more
	Direct                       // requests behind the oldest are not begun: they will need no packets
	Paced                        // a rate limit may hold each packet back
	Open                         // a frame is begun that small packets can share
)

func (s Setting) has(any Setting) bool { return s&any != 0 }

// Next is what may be sent next, as the window, the peer's resources and fences allow. It fills b
// in where that is more than to Wait.
func (s *State) Next(in Setting, b *Burst) Step {
	if s.mode.now >= Selective || s.probe.pending {
		if step, ok := s.nextRetransmit(b); ok {
			return step
		}
	}
	q := &s.queue
	if q.next == q.end {
		return Wait
	}
	r := q.current()
	psn := s.flight.next
	if r.is(started) {
		psn = wire.PSNAdd(r.psn, q.packet)
	}
	room := s.room(psn)
	if r.flags&started == 0 || r.failed != 0 {
		switch {
		case r.failed != 0:
			return s.nextFailed(b)
		case room <= 0 && r.kind != Local:
			return Wait
		case !s.mayStart(r, in):
			if s.awaitsAck() {
				return Wait
			}
			return s.nextAckReq(b)
		}
	}
	b.origin, b.Kind, b.Request, b.EndsFrame = fromCursor, r.kind, q.index(q.next), false
	if r.kind == Local {
		return ExecuteLocal
	}
	if room <= 0 || s.alarm.blocks(psn) {
		return Wait
	}
	b.PSN, b.Packet, b.Packets = psn, q.packet, 1
	if r.kind.hasData() {
		return s.nextData(b, r, uint32(room), in)
	}
	return s.nextRequest(b, r, uint32(room), in)
}

// nextBefore is what comes before the cursor's turn; not ok if there is none.
func (s *State) nextRetransmit(b *Burst) (step Step, ok bool) {
	switch {
	case s.mode.is(Failed):
		return Wait, true
	case s.mode.is(Selective):
		return s.nextLost(b)
	case s.flight.idle():
		return Wait, false
	}
	return s.nextProbe(b), true
}

// mayStart reports whether the current request may be begun.
func (s *State) mayStart(r *request, in Setting) bool {
	behind := s.queue.next != s.queue.first
	switch {
	case in.has(Draining), in.has(Direct) && behind, r.is(fenced) && s.queue.unanswered > 0:
		return false
	}
	return !s.credits.given || s.creditsAllow(r)
}

// mayExceed reports whether the peer's credits let a request be begun. Where all is acknowledged
// nothing is held back, whatever the counts say; nor where what was sent last left it to this one
// to ask for an acknowledgement.
func (s *State) creditsAllow(r *request) bool {
	return r.kind == Local || s.flight.una == s.flight.next || s.acks.sinceAckReq > 0 || s.credits.allow(r.kind, s.credits.begun)
}

// exceeds reports whether a request goes beyond the peer's credits; only the one that was begun
// last can, or is begun next.
func (s *State) exceedsCredits(r *request) bool {
	if r.is(started) {
		return r.past() == s.flight.next && s.credits.exceeded(r.kind, s.credits.begun)
	}
	return s.credits.exceeded(r.kind, s.credits.begun+1)
}

// room is how many packets the window takes from the given PSN on.
func (s *State) room(psn uint32) int32 {
	size, ahead := int32(s.window.size), wire.PSNDiff(psn, s.flight.una)
	if s.mode.is(Selective) {
		return min(size-s.board.inFlight, 2*int32(s.window.most)-ahead)
	}
	return size - ahead
}

// nextData is a burst of a SEND or WRITE: of one frame at most, and whole frames while the window
// opens.
func (s *State) nextData(b *Burst, r *request, room uint32, in Setting) Step {
	w := &s.window
	left, frame := r.packets-b.Packet, uint32(1)
	if left > 1 {
		frame = w.frameRest(b.Packet, r.packets)
		b.EndsFrame = b.Packet == 0 && frame == 1 && r.kind == Write
		if b.Packet > 0 && frame == uint32(w.batch) && room < w.fullFrame(left) && s.windowWillOpen() {
			return Wait // the window opens a part of a frame at a time: this one waits to be sent whole
		}
		if !in.has(Paced) {
			b.Packets = min(frame, left, room)
		}
		if s.alarm.isSet(RNR) {
			b.Packets = min(b.Packets, uint32(wire.PSNDiff(s.alarm.rnrPSN, b.PSN)))
		}
	}
	if s.credits.given && s.exceedsCredits(r) {
		if b.Packet > 0 && wire.PSNDiff(s.flight.una, r.psn) <= 0 {
			return Wait // its first packet is sent, and what follows waits for the acknowledgement of that
		}
		if b.Packet == 0 {
			b.Packets, b.AckReq, b.Final = 1, true, false
			return Transmit
		}
	}
	left -= b.Packets
	sinceAckReq, room := s.acks.sinceAckReq+b.Packets, room-b.Packets
	if b.Final = left != 0 && room == 0; left != 0 {
		b.AckReq = w.ackReqWithin(sinceAckReq, room, left, b.Packets == frame, s.awaitsAck())
	} else {
		b.AckReq = sinceAckReq >= uint32(w.period) || room == 0 && !s.awaitsAck() || !s.ackReqFollows(wire.PSNAdd(b.PSN, b.Packets-1), in)
	}
	return Transmit
}

// awaitsAck reports whether an acknowledgement was asked for and has not come. In mode Selective
// that is not known, as the packet that asked for it may be lost.
func (s *State) awaitsAck() bool { return !s.mode.is(Selective) && s.acks.awaited(s.flight.una) }

// opens reports whether something in flight will bring an answer, which opens the window or shows
// what is missing.
func (s *State) windowWillOpen() bool {
	return s.acks.awaited(s.flight.una) && (!s.mode.is(Selective) || !s.board.at(s.acks.requested-1).is(arrived))
}

// followed reports whether nothing but the window can keep the request behind the current one,
// which ends with PSN last, from being sent at once, and that it asks for an acknowledgement, or
// one behind it does.
func (s *State) ackReqFollows(last uint32, in Setting) bool {
	q := &s.queue
	repeated := wire.PSNDiff(s.flight.max, last) > 0
	if q.next+1 == q.end || repeated || s.mode.is(Selective) || in.has(Paced|Direct|Draining) {
		return false
	}
	behind := q.at(q.next + 1)
	if !behind.kind.hasData() || behind.is(fenced) || behind.failed != 0 {
		return false
	}
	return !s.credits.given || s.creditsAllowNext(q.current(), behind)
}

// allowsBehind reports whether the peer's credits let a request be begun behind the current one.
func (s *State) creditsAllowNext(current, behind *request) bool {
	c := s.credits
	if !current.is(started) {
		c.begin(current.kind)
	}
	return c.allow(behind.kind, c.begun)
}

// nextRequest is a burst that asks for answers: a piece of a READ that fits the window, so that its
// responses cannot overrun the queues on the way back, or an atomic.
func (s *State) nextRequest(b *Burst, r *request, room uint32, in Setting) Step {
	if s.reads.outstanding() >= int(s.limits.MaxReads) {
		if s.limits.MaxReads == 0 {
			return Refuse
		}
		return Wait
	}
	b.AckReq, b.Final = true, false
	if r.kind == Read {
		left := r.packets - b.Packet
		if s.coalescesReads(room, left, in) {
			return Wait
		}
		b.Packets = s.reads.bound(b.PSN, s.window.readPiece(left, room))
	}
	return Transmit
}

// gathersReads reports whether the rest of the current READ, of left packets, waits for more room:
// while answers come the window opens packet by packet, and much of it is asked for at a time
// (readRoom), of several READs if need be, whose requests share a frame then, and their answers
// too.
func (s *State) coalescesReads(room, left uint32, in Setting) bool {
	if s.reads.outstanding() == 0 || s.reads.repeats() || room >= s.window.readRoom(s.mtu) {
		return false
	}
	if !in.has(Open) {
		q := &s.queue
		for n := q.next + 1; left <= room && n != q.end; n++ {
			r := q.at(n)
			if r.kind != Read || r.is(fenced) {
				break
			}
			left += r.packets
		}
	}
	return room < left
}

// nextFailed is what to do about the current request, which cannot be sent: those before it may
// still complete.
func (s *State) nextFailed(b *Burst) Step {
	if q := &s.queue; q.next == q.first {
		b.Reason = q.current().failed
		return GiveUp
	}
	return s.nextAckReq(b)
}

// nextAckPoint is the last packet before the current request, which is not sent for now, if that
// was left to ask for an acknowledgement.
func (s *State) nextAckReq(b *Burst) Step {
	q := &s.queue
	if s.acks.sinceAckReq == 0 || q.next == q.first {
		return Wait
	}
	before := q.at(q.next - 1)
	if !before.kind.hasData() { // what comes before a request of another kind has asked
		return Wait
	}
	last := before.packets - 1
	*b = Burst{
		origin: fromAckReq, Kind: before.kind, AckReq: true,
		Request: q.index(q.next - 1), Packet: last, PSN: wire.PSNAdd(before.psn, last), Packets: 1,
	}
	return Transmit
}

// nextLost is the first burst that is lost, as far as the window goes; not ok if there is none.
func (s *State) nextLost(b *Burst) (step Step, ok bool) {
	psn, ok := s.board.nextLost(s.flight.max)
	if !ok {
		return Wait, false
	}
	q := &s.queue
	n := q.find(psn)
	r := q.at(n)
	if r.failed != 0 {
		b.Reason = r.failed
		if n == q.first {
			return GiveUp, true
		}
		return Wait, true
	}
	// What the peer waits for goes in any case: READs that it keeps count as in flight, and are not
	// answered before.
	if s.alarm.blocks(psn) || s.board.inFlight >= int32(s.window.size) && psn != s.board.executed {
		return Wait, true
	}
	*b = Burst{
		origin: fromScoreboard, Kind: r.kind, AckReq: true,
		Request: q.index(n), Packet: uint32(wire.PSNDiff(psn, r.psn)), PSN: psn, Packets: 1,
	}
	if r.kind == Read {
		end := r.past()
		if wire.PSNDiff(end, s.flight.max) > 0 {
			end = s.flight.max
		}
		b.Packets = s.board.lostRun(psn, uint32(wire.PSNDiff(end, psn)))
	}
	return Transmit, true
}

// nextProbe is una; where that is of a READ, the request for what is missing of it, with the bound
// it had.
func (s *State) nextProbe(b *Burst) Step {
	una, r := s.flight.una, s.queue.oldest()
	*b = Burst{
		origin: fromProbe, Kind: r.kind, AckReq: true,
		Packet: uint32(wire.PSNDiff(una, r.psn)), PSN: una, Packets: 1,
	}
	if r.kind == Read {
		b.Packets = uint32(wire.PSNDiff(s.reads.all()[0], una)) + 1
	}
	return Transmit
}

// Sent is told that a burst was sent, or the first packets of one: b.Packets and b.AckReq say what
// was.
func (s *State) Sent(b *Burst) {
	if b.origin != fromCursor {
		s.onRetransmitted(b)
		return
	}
	q, f := &s.queue, &s.flight
	r := q.current()
	if !r.is(started) {
		q.start(r, f.start(r.packets))
		s.credits.begin(r.kind)
	}
	if r.kind.hasData() {
		s.acks.sent(b.PSN, b.Packets, b.AckReq)
	} else {
		s.reads.requested(b.PSN, b.Packets)
	}
	if s.mode.is(Selective) {
		s.board.sent(b.PSN, b.Packets, r.kind.answered())
	} else if b.PSN == f.max && s.rtt.wanted(s.leastProbe()) {
		s.rtt.begin(b.PSN, s.env.Clock())
	}
	if s.rttSamples != nil && b.PSN == f.max {
		s.sampleRTT(b)
	}
	f.sent(wire.PSNAdd(b.PSN, b.Packets))
	q.advance(r, b.Packets)
}

// measure has the congestion controller told how long it takes until a burst is answered.
func (s *State) sampleRTT(b *Burst) {
	switch {
	case !b.Kind.hasData(): // the first answer comes without those behind it
		s.rttSamples.begin(b.PSN, s.env.Clock())
	case b.AckReq:
		s.rttSamples.begin(wire.PSNAdd(b.PSN, b.Packets-1), s.env.Clock())
	}
}

// measured tells the congestion controller of a round trip, if an answer has shown packets to have
// arrived that were measured.
func (s *State) onAnswered(arrived func(psn uint32) bool) {
	if took, now, ok := s.rttSamples.answered(s.env.Clock, arrived); ok {
		if size := s.window.clamp(s.window.onRoundTrip(took, now)); size != s.window.size {
			s.setWindow(uint32(size))
		}
	}
}

// sentAgain is told that packets were sent again, out of the cursor's turn.
func (s *State) onRetransmitted(b *Burst) {
	switch b.origin {
	case fromScoreboard:
		if s.rttSamples != nil {
			s.rttSamples.cancel(b.PSN)
		}
		s.board.resent(b.PSN, b.Packets, b.Kind.answered())
	case fromProbe:
		s.probe.sent(b.PSN, b.Packets)
		if s.probe.behind == s.flight.max {
			s.change(onProbeOver)
		} else {
			s.change(onProbe)
		}
	case fromAckReq:
		s.acks.sent(b.PSN, b.Packets, b.AckReq)
	}
}

// LocalExecuted is told that the local request of a burst is executed.
func (s *State) LocalExecuted() Outcome {
	s.queue.localExecuted(s.flight.next)
	return Outcome{Completed: s.queue.completeLocal()}
}

// Fail is told that the request of a burst cannot be sent, or executed, for a reason other than 0.
// Next then says what follows from that: the burst is not final.
func (s *State) Fail(b *Burst, reason uint8) {
	b.Final = false
	switch b.origin {
	case fromProbe: // as if lost: the timeout will find it, too
		s.probe.cancel()
	case fromAckReq:
		s.acks.sent(b.PSN, b.Packets, b.AckReq)
	default:
		s.queue.fail(s.queue.first+uint32(b.Request), reason)
	}
}
