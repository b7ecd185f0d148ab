package receive

import (
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// Owed is which acknowledgement is due, once all responses before it are sent.
type Owed uint8

const (
	Nothing Owed = iota
	Ack          // of AckPSN
	SACK         // a sequence NAK of PSN that says what is kept: see State.SACK
	NAK          // see State.NAK
	LastNAK      // the same; then the connection ends, for the Reason
)

// Owed is which acknowledgement is due. (IBTA Vol 1 §9.7.5.1.3)
func (s *State) Owed() Owed {
	a := &s.acks
	switch v := &s.verdict; {
	case v.due():
		if v.now == RefusalDue {
			return LastNAK
		}
		return NAK
	case a.selective:
		return SACK
	case a.due:
		return Ack
	}
	return Nothing
}

// AckPSN is the PSN of an Ack: that of the newest SEND or WRITE packet, as only responses
// acknowledge READs and atomics.
func (s *State) AckPSN() uint32 { return s.acks.psn }

// NAK is the NAK or LastNAK that is Owed, and its PSN.
func (s *State) NAK() (a wire.AETH, psn uint32) {
	a = wire.AETH{Syndrome: s.verdict.syndrome, MSN: s.expected.msn}
	if s.verdict.now == NAKDue {
		a.Syndrome = wire.NakPSNSeq
	}
	return a, s.expected.psn
}

// Reason is what OnRefused was told.
func (s *State) Reason() uint8 { return s.verdict.reason }

// SACK is what a SACK that is Owed has behind its headers. It is valid until the next event.
func (s *State) SACK() wire.Sack { return s.early.kept.sack(s.expected.psn) }

// OnAcknowledged is told that what was Owed is sent.
func (s *State) OnAcknowledged(owed Owed) {
	s.acks.sent()
	switch owed {
	case NAK, LastNAK:
		s.verdict.on(onSent)
	case SACK:
		s.early.kept.tellPeer()
	}
}

// OnlyAck reports whether nothing is due but an acknowledgement of what was executed.
func (s *State) OnlyAck() bool { return s.Owed() == Ack && !s.Responds() && !s.Pausing() }

// Responds reports whether responses are still to be sent: before whatever is Owed, and perhaps
// after a pause.
func (s *State) Responds() bool { return s.replies != nil && len(s.replies.pending.queue) > 0 }

// Pausing reports whether responses wait for the end of a pause.
func (s *State) Pausing() bool { return s.replies != nil && s.replies.pace.resume != 0 }

// Pending is the response that is to be sent first, nil if there is none: before whatever is Owed.
// It is valid until the next event but OnResponsePackets.
func (s *State) Pending() *Response {
	if !s.Responds() {
		return nil
	}
	return &s.replies.pending.queue[0]
}

// Burst is how many packets of a Pending response may be sent at once.
func (s *State) Burst(r *Response) uint32 { return s.replies.pace.size(r.total(), s.window()) }

// OnResponsePackets is told that the next packets of the Pending response are sent, with n bytes of
// data.
func (s *State) OnResponsePackets(r *Response, packets, n uint32) { r.next(packets, n) }

// OnBurst is told that a burst is sent and the response is not complete: the rest follows after a
// pause.
func (s *State) OnBurst() { s.replies.pace.pause(s.shared.Clock() + responsePause) }

// OnResponseSent is told that all of the Pending response is sent.
func (s *State) OnResponseSent() {
	if r := s.Pending(); r.Kind == Read && !r.replay {
		s.replies.pace.sent(r.total(), s.window())
	}
	s.replies.pending.pop()
}

// OnDeferredExecuted is told that the request of the Pending response, which was Deferred, is
// executed, and what memory held before an atomic. Its duplicates get the same answer.
func (s *State) OnDeferredExecuted(orig uint64) {
	r := s.Pending()
	if old, _ := s.replies.history.find(r.PSN); old != nil {
		old.executed(orig)
	}
	r.executed(orig)
}

// DropPending is told that the connection ends: none of the responses will be sent.
func (s *State) DropPending() {
	if s.replies != nil {
		s.replies.pending.clear()
	}
}
