package receive

import (
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// Owed is the acknowledgement that is due after all queued responses.
type Owed uint8

const (
	Nothing     Owed = iota
	Ack              // of AckPSN
	SACK             // a sequence NAK of PSN with a list of the kept packets: see State.SACK
	TrimmedSACK      // a sequence NAK of PSN that says which packet was trimmed: see State.TrimmedSACK
	NAK              // see State.NAK
	LastNAK          // a NAK that ends the connection, for the Reason
)

// Owed returns the acknowledgement that is due. (IBTA Vol 1 §9.7.5.1.3)
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
	case s.early != nil && s.early.trimmed.due(s.expected.psn):
		return TrimmedSACK
	case a.due:
		return Ack
	}
	return Nothing
}

// AckPSN returns the PSN of an Ack, which is the newest SEND or WRITE packet. READs and atomics are
// acknowledged by their responses only.
func (s *State) AckPSN() uint32 { return s.acks.psn }

// NAK returns the NAK or LastNAK that is due, and its PSN.
func (s *State) NAK() (a wire.AETH, psn uint32) {
	a = wire.AETH{Syndrome: s.verdict.syndrome, MSN: s.expected.msn}
	if s.verdict.now == NAKDue {
		a.Syndrome = wire.NakPSNSeq
	}
	return a, s.expected.psn
}

// Reason returns the reason given to OnRefused.
func (s *State) Reason() uint8 { return s.verdict.reason }

// SACK returns the payload of a SACK that is due. It is valid until the next event.
func (s *State) SACK() wire.Sack { return s.early.kept.sack(s.expected.psn) }

// TrimmedSACK returns the payload of a TrimmedSACK that is due. It is valid until the next event.
func (s *State) TrimmedSACK() wire.Sack { return s.early.trimmed.sack(s.expected.psn) }

// OnAcknowledged records that the acknowledgement that was Owed is sent.
func (s *State) OnAcknowledged(owed Owed) {
	s.acks.sent()
	switch owed {
	case NAK, LastNAK:
		s.verdict.on(onSent)
	case SACK:
		s.early.kept.setReported()
		return // a TrimmedSACK may follow
	}
	if s.early != nil {
		s.early.trimmed.reported()
	}
}

// OnlyAck reports whether an acknowledgement is due, and nothing else.
func (s *State) OnlyAck() bool { return s.Owed() == Ack && !s.Responds() && !s.Pausing() }

// Responds reports whether responses are queued. They are sent before the acknowledgement that is
// Owed, perhaps after a pause.
func (s *State) Responds() bool { return s.replies != nil && len(s.replies.pending.queue) > 0 }

// Pausing reports whether responses wait for the end of a pause.
func (s *State) Pausing() bool { return s.replies != nil && s.replies.pace.resume != 0 }

// Pending returns the first queued response, or nil. It must be sent before the acknowledgement
// that is Owed. It is valid until the next event, except OnResponsePackets.
func (s *State) Pending() *Response {
	if !s.Responds() {
		return nil
	}
	return &s.replies.pending.queue[0]
}

// Burst returns how many packets of a Pending response may be sent at once.
func (s *State) Burst(r *Response) uint32 { return s.replies.pace.size(r.total(), s.window()) }

// OnResponsePackets records that the next packets of the Pending response are sent, with n bytes of
// payload.
func (s *State) OnResponsePackets(r *Response, packets, n uint32) { r.next(packets, n) }

// OnBurst records that a burst is sent and the response is not complete. The rest follows after a
// pause.
func (s *State) OnBurst() { s.replies.pace.pause(s.shared.Clock() + responsePause) }

// OnResponseSent records that the Pending response is sent in full.
func (s *State) OnResponseSent() {
	if r := s.Pending(); r.Kind == Read && !r.replay {
		s.replies.pace.onSent(r.total(), s.window())
	}
	s.replies.pending.pop()
}

// OnDeferredExecuted records that the deferred request of the Pending response was executed. orig
// is the previous content of memory, for an atomic. Duplicates get the same response.
func (s *State) OnDeferredExecuted(orig uint64) {
	r := s.Pending()
	if old, _ := s.replies.history.find(r.PSN); old != nil {
		old.executed(orig)
	}
	r.executed(orig)
}

// DropPending drops all queued responses at the end of the connection.
func (s *State) DropPending() {
	if s.replies != nil {
		s.replies.pending.clear()
	}
}
