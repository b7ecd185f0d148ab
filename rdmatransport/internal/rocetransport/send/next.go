package send

import "github.com/softrnic/softrnic/rdmatransport/wire"

// Step is the next step of the requester.
type Step uint8

const (
	Wait         Step = iota // do nothing until the next event
	Transmit                 // send the packets of the Burst
	ExecuteLocal             // execute a local request, and call LocalExecuted or Fail
	// Fail a request that can never be sent: it has a response, and the QP may have none outstanding.
	Refuse
	GiveUp // fail the QP with Reason: the oldest request has failed
)

// Burst is a run of consecutive packets of one request that may be sent.
type Burst struct {
	origin origin
	Kind   Kind // of the request
	AckReq bool // the last packet requests an acknowledgement
	// The frame ends with the burst: its packet is longer than those after it, which fill whole
	// frames.
	EndsFrame bool
	// After the burst, Next returns Wait: the window is full in the middle of a request.
	Final   bool
	Reason  uint8  // for GiveUp: the reason given to Fail
	Request int    // index of the request, from the oldest
	Packet  uint32 // index of the first packet in the request
	PSN     uint32 // PSN of the first packet
	Packets uint32 // number of PSNs; for a READ, the number of responses to one request packet
}

// origin is the reason for a burst.
type origin uint8

const (
	fromCursor     origin = iota // new packets, or go-back-N
	fromScoreboard               // the packets were lost
	fromProbe                    // a probe
	fromAckReq                   // the last packet sent again, to request an acknowledgement
)

// Repeats reports whether the burst retransmits single packets.
func (b *Burst) Repeats() bool { return b.origin == fromScoreboard }

// Setting is a property of the QP that affects which packets may be sent.
type Setting uint8

const (
	Draining Setting = 1 << iota // no request is started any more
	// Requests after the oldest are not started: they will be moved without packets.
	Direct
	Paced // a rate limit or the adapter may delay each packet
	Open  // an open frame has room for small packets
)

func (s Setting) has(any Setting) bool { return s&any != 0 }

// Next returns the next step that the window, the peer's resources and fences allow. It fills in b
// for every step except Wait.
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

// nextRetransmit returns the step that has priority over new packets. ok is false if there is none.
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

// mayStart reports whether the current request may be started.
func (s *State) mayStart(r *request, in Setting) bool {
	behind := s.queue.next != s.queue.first
	switch {
	case in.has(Draining), in.has(Direct) && behind, r.is(fenced) && s.queue.unanswered > 0:
		return false
	}
	return !s.credits.given || s.creditsAllow(r)
}

// creditsAllow reports whether the peer's credits allow a request to start. In two cases they are
// not considered: if nothing is unacknowledged, to avoid a deadlock, and if earlier packets left
// the acknowledgement request to this request.
func (s *State) creditsAllow(r *request) bool {
	return r.kind == Local || s.flight.una == s.flight.next || s.acks.sinceAckReq > 0 || s.credits.allow(r.kind, s.credits.begun)
}

// exceedsCredits reports whether a request exceeds the peer's credits. Only the last started
// request can, or the next one.
func (s *State) exceedsCredits(r *request) bool {
	if r.is(started) {
		return r.past() == s.flight.next && s.credits.exceeded(r.kind, s.credits.begun)
	}
	return s.credits.exceeded(r.kind, s.credits.begun+1)
}

// room returns the number of packets that the window allows from psn on.
func (s *State) room(psn uint32) int32 {
	size, ahead := int32(s.window.size), wire.PSNDiff(psn, s.flight.una)
	if s.mode.is(Selective) {
		return min(size-s.board.inFlight, int32(s.window.span)-ahead)
	}
	return size - ahead
}

// nextData returns a burst of a SEND or WRITE. It is at most one frame, and only whole frames while
// the window opens.
func (s *State) nextData(b *Burst, r *request, room uint32, in Setting) Step {
	w := &s.window
	left, frame := r.packets-b.Packet, uint32(1)
	if left > 1 {
		frame = w.frameRest(b.Packet, r.packets)
		b.EndsFrame = b.Packet == 0 && frame == 1 && r.kind == Write
		if b.Packet > 0 && frame == uint32(w.batch) && room < w.fullFrame(left) && s.windowWillOpen() {
			return Wait // the window opens by less than a frame: wait until the frame fits
		}
		if !in.has(Paced) {
			b.Packets = min(frame, left, room)
		}
		if s.alarm.isSet(RNRWaitEnd) {
			b.Packets = min(b.Packets, uint32(wire.PSNDiff(s.alarm.rnrPSN, b.PSN)))
		}
	}
	if s.credits.given && s.exceedsCredits(r) {
		if b.Packet > 0 && wire.PSNDiff(s.flight.una, r.psn) <= 0 {
			return Wait // the first packet is sent, and the rest waits for its acknowledgement
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

// awaitsAck reports whether a requested acknowledgement is outstanding. In mode Selective it
// returns false, as the packet with the request may be lost.
func (s *State) awaitsAck() bool { return !s.mode.is(Selective) && s.acks.awaited(s.flight.una) }

// awaitsAnswer reports whether the peer is to answer something that is in flight. In mode Selective
// each packet that is sent again requests an acknowledgement.
func (s *State) awaitsAnswer() bool {
	return s.acks.awaited(s.flight.una) || s.reads.outstanding() > 0 || s.mode.is(Selective)
}

// windowWillOpen reports whether a packet in flight will be answered. The answer opens the window
// or reveals a loss.
func (s *State) windowWillOpen() bool {
	return s.acks.awaited(s.flight.una) && (!s.mode.is(Selective) || !s.board.at(s.acks.requested-1).is(arrived))
}

// ackReqFollows reports whether the current request can leave the acknowledgement request to the
// next request, or to a later one. This is so if only the window can delay the next request. last
// is the last PSN of the current request.
func (s *State) ackReqFollows(last uint32, in Setting) bool {
	q := &s.queue
	repeated := wire.PSNDiff(s.flight.max, last) > 0
	if q.next+1 == q.end || repeated || s.mode.is(Selective) || in.has(Paced|Direct|Draining) {
		return false
	}
	following := q.at(q.next + 1)
	if !following.kind.hasData() || following.is(fenced) || following.failed != 0 {
		return false
	}
	return !s.credits.given || s.creditsAllowNext(q.current(), following)
}

// creditsAllowNext reports whether the peer's credits allow another request after the current one.
func (s *State) creditsAllowNext(current, following *request) bool {
	c := s.credits
	if !current.is(started) {
		c.begin(current.kind)
	}
	return c.allow(following.kind, c.begun)
}

// nextRequest returns a burst that has responses: an atomic, or a piece of a READ. A piece fits the
// window, so that its responses cannot overrun queues on the path.
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

// coalescesReads reports whether the rest of the current READ, of left packets, waits for more
// room. While responses arrive, the window opens packet by packet. READs therefore wait for room
// for readRoom packets, so that several requests share a frame, and their responses do too.
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

// nextFailed returns the step for a current request that cannot be sent. Requests before it may
// still complete.
func (s *State) nextFailed(b *Burst) Step {
	if q := &s.queue; q.next == q.first {
		b.Reason = q.current().failed
		return GiveUp
	}
	return s.nextAckReq(b)
}

// nextAckReq sends the last packet before the current request again. It does so if that packet left
// the acknowledgement request to the current request, which cannot be sent now.
func (s *State) nextAckReq(b *Burst) Step {
	q := &s.queue
	if s.acks.sinceAckReq == 0 || q.next == q.first {
		return Wait
	}
	before := q.at(q.next - 1)
	if !before.kind.hasData() { // requests of other kinds have responses anyway
		return Wait
	}
	last := before.packets - 1
	*b = Burst{
		origin: fromAckReq, Kind: before.kind, AckReq: true,
		Request: q.index(q.next - 1), Packet: last, PSN: wire.PSNAdd(before.psn, last), Packets: 1,
	}
	return Transmit
}

// nextLost returns the first lost burst that the window allows. ok is false if nothing is lost.
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
	// The packet that the peer waits for is sent even if the window is full. READs that the peer
	// keeps count as in flight, and are not answered before.
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

// nextProbe returns una as a burst. If una is of a READ, the burst requests the missing responses
// of one piece, with the bound of the first request.
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

// Sent records that a burst, or its first packets, was sent. b.Packets and b.AckReq are those that
// were sent.
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
	}
	past := wire.PSNAdd(b.PSN, b.Packets)
	if wire.PSNDiff(past, f.max) > 0 {
		s.measureRTT(b)
	}
	f.sent(past)
	q.advance(r, b.Packets)
}

// measureRTT measures the round trip of new packets, for probes and for the congestion controller.
// The burst has some, perhaps after packets that are sent again. Those that request an answer are
// measured. A gap delays answers, so it is measured only for the controller then.
//
// A peer that goes back is not probed before a round trip is known. So until then any new packet is
// measured: where many are lost, those with a request may all be sent again before they are
// answered.
func (s *State) measureRTT(b *Burst) {
	first := !s.mode.selective && !s.rtt.measured()
	if !b.AckReq && !first {
		return
	}
	psn := s.flight.max // of a request: the first response does not wait for the ones after it
	if b.Kind.hasData() && !first {
		psn = wire.PSNAdd(b.PSN, b.Packets-1)
	}
	if !s.mode.is(Selective) && s.rtt.wanted() {
		s.rtt.begin(psn, s.env.Clock())
	}
	if b.AckReq && s.rttSamples != nil {
		s.rttSamples.begin(psn, s.env.Clock())
	}
}

// onAnswered passes a round trip to the congestion controller if a sampled packet has arrived.
func (s *State) onAnswered(arrived func(psn uint32) bool) {
	if took, now, ok := s.rttSamples.answered(s.env.Clock, arrived); ok {
		if size := s.window.clamp(s.window.onRoundTrip(took, now)); size != s.window.size {
			s.setWindow(uint32(size))
		}
	}
}

// onRetransmitted records that packets were retransmitted.
func (s *State) onRetransmitted(b *Burst) {
	switch b.origin {
	case fromScoreboard:
		if s.rttSamples != nil {
			s.rttSamples.cancel(b.PSN)
		}
		s.board.resent(b.PSN, b.Packets, b.Kind.answered())
		if s.rtt.await == probeDue {
			s.rtt.sentProbe(s.env.Clock())
		}
	case fromProbe:
		s.probe.sent(b.PSN, b.Packets)
		s.rtt.sentProbe(s.env.Clock())
		if s.probe.after == s.flight.max {
			s.change(onProbeOver)
		} else {
			s.change(onProbe)
		}
	case fromAckReq:
		s.acks.sent(b.PSN, b.Packets, b.AckReq)
	}
}

// LocalExecuted records that the local request of a burst was executed.
func (s *State) LocalExecuted() Outcome {
	s.queue.localExecuted(s.flight.next)
	return Outcome{Completed: s.queue.completeLocal()}
}

// Fail records that the request of a burst cannot be sent or executed. reason is not 0. Call Next
// for the consequences, even if the burst was Final.
func (s *State) Fail(b *Burst, reason uint8) {
	b.Final = false
	switch b.origin {
	case fromProbe: // treat it as lost: the timeout will find the failure
		s.probe.cancel()
	case fromAckReq:
		s.acks.sent(b.PSN, b.Packets, b.AckReq)
	default:
		s.queue.fail(s.queue.first+uint32(b.Request), reason)
	}
}
