// Package receive is the receive state of a reliable connection. It tracks the expected packet,
// acknowledgements and NAKs that are due, and responses that are queued. It also keeps responses to
// answer duplicates, and early packets to fill gaps. It knows PSNs, packets and time, but no verbs,
// memory or network. Its owner, the responder, asks how to handle each request packet, executes it,
// and sends the packets that are due. (IBTA Vol 1 §9.7.4, §9.7.5.1)
//
// Events report changes to the State. A request packet arrives (OnRequest), is executed
// (OnExecuted, OnAccepted), finds no receive request (OnNotReady) or is refused (OnRefused). A
// packet is sent (OnAcknowledged, OnResponseSent …), the alarm goes off (OnAlarm), or a message is
// moved without packets (OnMovedDirectly). Queries have no side effects: Owed is the
// acknowledgement that is due, Pending the next response, Deadline the time of the alarm. NextKept
// removes a packet from the store, DropContradicted all of them, and DropPending drops the queued
// responses.
//
// A State has no lock of its own. The owner's lock protects it.
//
// Each concern has its own file, and each field is written only in the file that declares it. In
// order: request.go handles request packets, and respond.go selects the packets to send. Both work
// on State (state.go), which consists of expected.go, the packet that is expected next; verdict.go,
// whether a NAK is due; rnr.go, the wait after an RNR NAK; early.go, whether early packets are
// kept; trimmed.go, what switches have left of packets; store.go, where early packets are kept;
// acks.go, the acknowledgement that is due; pending.go, the queued responses; history.go, earlier
// responses; and pace.go, the rate of READ responses.
package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// State is the receive state of one QP. Init must be called once, and Begin for each connection.
// Most QPs never lose packets and never answer READs. The state for these is allocated on first
// use.
type State struct {
	expected expected
	acks     acks
	verdict  verdict
	limit    uint8    // READs, atomics and the like that the peer may have outstanding
	mtu      uint32   // bytes of payload in a full packet
	early    *early   // nil before the first marked packet that came too early
	replies  *replies // nil before the first READ, atomic or the like
	rnr      *rnrWait // nil before the first RNR NAK
	shared   *Shared
}

// replies is the state of responses.
type replies struct {
	pending pending
	history history
	pace    pace
}

// Shared is common to all States of a device.
type Shared struct {
	Clock  Clock
	Window uint32 // the largest number of payload bytes that a peer has in flight: a power of two
	// NoForgeries says that nobody else can send packets, as in a simulation. Early packets are then
	// kept from the first loss on.
	NoForgeries bool
	stores      stores
}

// Clock returns a monotonic time since some start. 0 means never.
type Clock func() time.Duration

// Connection is the set of attributes of a QP that enters RTR.
type Connection struct {
	PSN   uint32    // of the first packet
	MTU   uint32    // bytes of payload in a full packet; 0 for unreliable connections
	Limit uint8     // READs, atomics and the like that the peer may have outstanding
	Mark  wire.Mark // of the peer's requests; 0 if marks are ignored
}

// Init sets the state that is shared with others. It is called once.
func (s *State) Init(shared *Shared) { s.shared = shared }

// Begin initializes the State when the QP enters RTR.
func (s *State) Begin(c *Connection) {
	s.Reset()
	s.expected.init(c.PSN, c.Mark)
	s.acks.init(wire.PSNAdd(c.PSN, 1<<24-1))
	s.limit, s.mtu = c.Limit, c.MTU
}

// Stop ends all waiting, when the QP has failed or is reset.
func (s *State) Stop() {
	if s.replies != nil {
		s.replies.pace.endPause()
	}
	s.dropKept()
}

// Reset stops and clears the State.
func (s *State) Reset() {
	s.Stop()
	s.expected.init(0, 0)
	s.acks.init(0)
	s.verdict.init()
	s.limit, s.early, s.replies, s.rnr = 0, nil, nil, nil
}

// SetLimit changes the number of READs, atomics and the like that the peer may have outstanding.
func (s *State) SetLimit(limit uint8) {
	s.limit = limit
	if s.replies != nil {
		s.replies.history.setLimit(limit)
	}
}

// Limit returns the number of READs, atomics and the like that the peer may have outstanding.
func (s *State) Limit() uint8 { return s.limit }

// PSN returns the PSN that is expected next.
func (s *State) PSN() uint32 { return s.expected.psn }

// MSN returns the number of complete messages, modulo 2^24.
func (s *State) MSN() uint32 { return s.expected.msn }

// Mark returns the mark of the connection's packets, as given to Begin.
func (s *State) Mark() wire.Mark { return s.expected.mark }

// window returns the largest number of packets that a peer has in flight.
func (s *State) window() uint32 { return send.Window(s.shared.Window, s.mtu) }

// Refused reports whether a request was refused. The connection ends once the NAK is sent.
func (s *State) Refused() bool { return s.verdict.refused() }

// Deadline returns the time at which OnAlarm must be called, or 0 for never.
func (s *State) Deadline() (due time.Duration) {
	if s.replies != nil {
		due = s.replies.pace.resume
	}
	if s.early.keeps() {
		if k := s.early.kept; due == 0 || k.deadline < due {
			due = k.deadline
		}
	}
	return due
}

// OnAlarm handles the alarm: it ends the pause after a burst of responses, and drops packets that
// were kept too long.
func (s *State) OnAlarm(now time.Duration) {
	if s.replies != nil && now >= s.replies.pace.resume {
		s.replies.pace.endPause()
	}
	if s.early.keeps() && now >= s.early.kept.deadline {
		reported := s.dropKept()
		s.early.onTimeout()
		if reported {
			s.verdict.on(onGap)
		}
	}
}

// Quiescent reports whether psn is expected next and nothing is owed to the peer. A message that
// starts at psn may then be moved without packets.
func (s *State) Quiescent(psn uint32) bool {
	v := &s.verdict
	owes := v.due() || s.Responds()
	return s.expected.psn == psn && !owes && !v.refused() && !s.Pausing()
}

// OnMovedDirectly records that the next packets of a Quiescent State were not sent. They count as
// received and acknowledged. acked: they would have been answered by an acknowledgement, not by a
// response. complete: they complete a message.
func (s *State) OnMovedDirectly(packets uint32, acked, complete bool) {
	s.verdict.on(onExpected)
	s.expected.advance(packets)
	if acked {
		s.acks.executed(wire.PSNAdd(s.expected.psn, 1<<24-1))
	}
	if complete {
		s.expected.endMessage()
	}
}

// OnUnreliable records a packet of an unreliable connection as the expected one. It returns true if
// packets before it are missing; they will not arrive any more.
func (s *State) OnUnreliable(psn uint32) (missing bool) {
	if missing = psn != s.expected.psn; missing {
		s.expected.restart(psn)
	}
	return missing
}

// OnUnreliableDropped records that such a packet was dropped.
func (s *State) OnUnreliableDropped() { s.expected.advance(1) }

// DropContradicted drops the kept packets of a Quiescent State and reports whether there were any.
// They cannot be the peer's, because the peer has nothing in flight.
func (s *State) DropContradicted() bool {
	if !s.early.keeps() {
		return false
	}
	s.suspect()
	return true
}

// suspect is dropKept because some of the packets, or the one that contradicts them, are forged, or
// packets have overtaken each other.
func (s *State) suspect() (reported bool) {
	reported = s.dropKept()
	s.early.suspect(s.shared.Clock())
	return reported
}

// ensureEarly allocates s.early if it is nil.
func (s *State) ensureEarly() *early {
	if s.early == nil {
		s.early = new(early)
	}
	return s.early
}

// ensureReplies allocates s.replies if it is nil.
func (s *State) ensureReplies() *replies {
	if s.replies == nil {
		s.replies = new(replies)
		s.replies.pending.init(s.limit)
		s.replies.history.init(s.limit)
	}
	return s.replies
}

// ensureRNR allocates s.rnr if it is nil.
func (s *State) ensureRNR() *rnrWait {
	if s.rnr == nil {
		s.rnr = new(rnrWait)
	}
	return s.rnr
}

// dropKept drops all kept packets. It returns whether packets were reported to the peer. A sequence
// NAK must revoke the report: the peer does not send again what it takes for kept.
func (s *State) dropKept() (reported bool) {
	if s.early.keeps() {
		reported = s.early.kept.reported
		s.shared.stores.put(s.early.stopKeeping())
		s.acks.setSelective(false)
	}
	return reported
}
