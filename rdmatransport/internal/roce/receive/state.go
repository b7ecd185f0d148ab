// Package receive is the state of a reliable connection's receiving: which packet is expected and
// what becomes of one that comes, what the peer is to be told, which responses are still to be
// sent, and what is kept to answer duplicates and to fill gaps. It knows PSNs, packets and time,
// and nothing of verbs, of memory or of the network: its owner, the responder, asks what to do with
// each request packet, executes it, and sends what is due. (IBTA Vol 1 §9.7.4, §9.7.5.1)
//
// Events are what happened: a request packet has come (OnRequest), was executed (OnExecuted,
// OnAccepted), found no receive request (OnNotReady) or was refused (OnRefused); something was sent
// (OnAcknowledged, OnResponseSent …); the alarm went off (OnAlarm); a message needed no packets
// (OnMovedDirectly). Questions have no side effects: Owed is which acknowledgement is due, Pending
// which response, Deadline until when to wait. NextKept takes a packet out of the store,
// DropContradicted all of them, and DropPending drops the responses.
//
// A State has no lock; its owner has one.
//
// Each concern has its file, and each field is written in the file that declares it. From the top:
// request.go takes packets in and respond.go says what is to be sent, on a State (state.go) that
// stands on expected.go, the packet that comes next; verdict.go, what is wrong with it and whether
// the peer knows; rnr.go, the wait behind an RNR NAK; early.go, whether packets that came too early
// are kept, and store.go, where; acks.go, the acknowledgement that is due; pending.go, the
// responses that are, history.go, those that were; and pace.go, how fast READs are answered.
package receive

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/roce/send"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// State is the state of receiving of one QP. The zero value has to be set up by Init, and by Begin
// for each connection. What only a connection needs that loses packets, or answers READs, is made
// when it first does: most never do.
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

// replies is what was answered, and what is to be.
type replies struct {
	pending pending
	history history
	pace    pace
}

// Shared is what all States of a device have in common.
type Shared struct {
	Clock  Clock
	Window uint32 // bytes of payload that a peer has in flight at most: a power of two
	stores stores
}

// Clock is a monotonic time, counted from some start; 0 stands for never.
type Clock func() time.Duration

// Connection is what a QP enters RTR with.
type Connection struct {
	PSN   uint32    // of the first packet
	MTU   uint32    // bytes of payload in a full packet; 0 where nothing is acknowledged
	Limit uint8     // READs, atomics and the like that the peer may have outstanding
	Mark  wire.Mark // of the peer's requests; 0 if marks are not looked at
}

// Init says what the State shares with others. It is called once.
func (s *State) Init(shared *Shared) { s.shared = shared }

// Begin sets everything up as the QP enters RTR.
func (s *State) Begin(c *Connection) {
	s.Reset()
	s.expected.init(c.PSN, c.Mark)
	s.acks.init(wire.PSNAdd(c.PSN, 1<<24-1))
	s.limit, s.mtu = c.Limit, c.MTU
}

// Stop ends all waiting: the QP has failed, or is reset.
func (s *State) Stop() {
	if s.replies != nil {
		s.replies.pace.endPause()
	}
	s.dropKept()
}

// Reset is Stop, and forgets everything.
func (s *State) Reset() {
	s.Stop()
	s.expected.init(0, 0)
	s.acks.init(0)
	s.verdict.init()
	s.limit, s.early, s.replies, s.rnr = 0, nil, nil, nil
}

// SetLimit changes how many READs, atomics and the like the peer may have outstanding.
func (s *State) SetLimit(limit uint8) {
	s.limit = limit
	if s.replies != nil {
		s.replies.history.setLimit(limit)
	}
}

// Limit is how many READs, atomics and the like the peer may have outstanding.
func (s *State) Limit() uint8 { return s.limit }

// PSN is the PSN that is expected next.
func (s *State) PSN() uint32 { return s.expected.psn }

// MSN is how many messages are complete, modulo 2^24.
func (s *State) MSN() uint32 { return s.expected.msn }

// Mark is what marks the connection's packets, as Begin was told.
func (s *State) Mark() wire.Mark { return s.expected.mark }

// window is how many packets a peer has in flight at most.
func (s *State) window() uint32 { return send.Window(s.shared.Window, s.mtu) }

// Refused reports whether a request was refused. The connection ends once the peer is told.
func (s *State) Refused() bool { return s.verdict.refused() }

// Deadline is when OnAlarm is to be called, 0 if never.
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

// OnAlarm is told of the time. When that has come, the pause behind a burst of responses ends, and
// packets that were kept too long are dropped.
func (s *State) OnAlarm(now time.Duration) {
	if s.replies != nil && now >= s.replies.pace.resume {
		s.replies.pace.endPause()
	}
	if s.early.keeps() && now >= s.early.kept.deadline {
		told := s.early.kept.told
		s.dropKept()
		s.early.overdue()
		if told {
			s.verdict.on(onGap)
		}
	}
}

// Still reports whether the responder awaits a PSN, and owes nothing: a message from there may be
// moved without packets.
func (s *State) Still(psn uint32) bool {
	v := &s.verdict
	owes := v.due() || s.Responds()
	return s.expected.psn == psn && !owes && !v.refused() && !s.Pausing()
}

// OnMovedDirectly is told that the next so many packets, where the State is Still, needed not be
// sent, and count as if they had come and been acknowledged. acked: they would have been
// acknowledged, not answered. They may complete a message.
func (s *State) OnMovedDirectly(packets uint32, acked, complete bool) {
	s.verdict.on(onTurn)
	s.expected.advance(packets)
	if acked {
		s.acks.executed(wire.PSNAdd(s.expected.psn, 1<<24-1))
	}
	if complete {
		s.expected.endMessage()
	}
}

// OnUnreliable is told of a packet of an unreliable connection, which then is the expected one. It
// returns true if packets before it are missing: they will not come any more.
func (s *State) OnUnreliable(psn uint32) (missing bool) {
	if missing = psn != s.expected.psn; missing {
		s.expected.restart(psn)
	}
	return missing
}

// OnUnreliableDropped is told that such a packet was dropped.
func (s *State) OnUnreliableDropped() { s.expected.advance(1) }

// DropContradicted drops the packets that are kept, where the State is Still, and reports whether
// there were any: they claim to be the peer's, which has nothing in flight.
func (s *State) DropContradicted() bool {
	if !s.early.keeps() {
		return false
	}
	s.suspect()
	return true
}

// suspect drops what is kept: some of it, or what contradicts it, is not the peer's. If the peer
// was told of it, the next gap is answered by a sequence NAK, and the peer forgets.
func (s *State) suspect() {
	s.dropKept()
	s.early.suspect(s.shared.Clock())
}

// ensureEarly makes s.early, if there is none.
func (s *State) ensureEarly() *early {
	if s.early == nil {
		s.early = new(early)
	}
	return s.early
}

// ensureReplies makes s.replies, if there are none.
func (s *State) ensureReplies() *replies {
	if s.replies == nil {
		s.replies = new(replies)
		s.replies.pending.init(s.limit)
		s.replies.history.init(s.limit)
	}
	return s.replies
}

// ensureRNR makes s.rnr, if there is none.
func (s *State) ensureRNR() *rnrWait {
	if s.rnr == nil {
		s.rnr = new(rnrWait)
	}
	return s.rnr
}

// dropKept forgets what is kept.
func (s *State) dropKept() {
	if s.early.keeps() {
		s.shared.stores.give(s.early.forget())
		s.acks.setSelective(false)
	}
}
