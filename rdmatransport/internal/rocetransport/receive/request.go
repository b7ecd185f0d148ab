package receive

import (
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// Outcome is the result of OnRequest, for the owner to act on and to count. A packet that is
// neither InOrder nor a Duplicate arrived early, may be forged, or came after the end of the
// connection.
type Outcome uint8

const (
	InOrder   Outcome = 1 << iota // execute it, and then the packets of NextKept
	Duplicate                     // it was executed before; its answer is due
	Gap                           // a packet before it is missing
	Suspect                       // it, or an earlier packet, may be forged
)

// Has reports whether the outcome includes any of the given ones.
func (o Outcome) Has(any Outcome) bool { return o&any != 0 }

// OnRequest handles a request packet and classifies it. Its acknowledgement, response or NAK is due
// from then on.
func (s *State) OnRequest(p *wire.Packet) Outcome {
	exp := &s.expected
	if s.verdict.refused() {
		return 0
	}
	m := exp.marking(p)
	if exp.lacksMark(m) {
		return Suspect
	}
	switch d := wire.PSNDiff(p.PSN, exp.psn); {
	case d < 0:
		s.repeat(p, m)
		return Duplicate
	case d > 0:
		return s.onEarly(p, m, d)
	}
	s.verdict.on(onExpected)
	if m != unmarked {
		exp.setMarked()
	}
	if s.early == nil {
		return InOrder
	}
	return InOrder | s.onExpected(m)
}

// onExpected records that the expected packet has arrived after early ones. It returns Suspect if
// the packet contradicts them.
func (s *State) onExpected(m marking) (o Outcome) {
	psn := s.expected.psn
	if s.early.trimmed.follows(psn) {
		s.verdict.on(onGap) // of the packet after this one
	}
	if !s.early.onExpected(psn, m, s.shared.Clock) {
		o = Suspect
		if s.suspect() {
			s.verdict.on(onGap) // of the packet after this one
		}
	}
	if s.early.keeps() {
		s.early.kept.begin(psn)
	}
	return o
}

// onEarly handles a packet that arrived d packets early.
func (s *State) onEarly(p *wire.Packet, m marking, d int32) (o Outcome) {
	if m != unmarked && p.Opcode.Info().Known() && fits(p, d, s.mtu, s.shared.Window) {
		var kept bool
		if o, kept = s.keep(p, m); kept {
			return o
		}
	}
	v := &s.verdict
	switch reported := v.now != Accepting; {
	case !reported, v.waitsForReceive() && s.retransmissionLost(p.PSN):
		o |= Gap
		if s.early != nil {
			s.early.setGap(!reported)
		}
		v.on(onGap)
	case m != unmarked && p.AckReq && !v.waitsForReceive():
		// A peer that marks its packets probes with the last one, and goes back only once per loss.
		v.on(onGap)
	}
	return o
}

// retransmissionLost reports whether an early packet proves that the packet of the last RNR NAK was
// retransmitted and lost.
func (s *State) retransmissionLost(psn uint32) bool {
	if s.verdict.now == RNRSent && s.rnr.retransmissionLost(psn, s.expected.psn, s.shared.Clock) {
		return true
	}
	s.rnr.record(psn)
	return false
}

// keep keeps a marked early packet if it can. Otherwise the peer must retransmit the packet.
func (s *State) keep(p *wire.Packet, m marking) (o Outcome, kept bool) {
	e := s.ensureEarly()
	if !e.onEarly(p.PSN, m) {
		s.suspect()
		e.onEarly(p.PSN, m)
		return Suspect, false
	}
	if e.kept == nil && !s.startKeeping() {
		return 0, false
	}
	gap, report, ok := e.kept.add(p)
	if !ok {
		s.suspect()
		return Suspect, false
	}
	if gap {
		o = Gap
	}
	if report {
		s.acks.setSelective(true)
	}
	return o, true
}

// startKeeping takes a store if packets may be kept. They may not if a NAK for the missing packet
// was sent, or if that packet found no receive request.
func (s *State) startKeeping() bool {
	if s.verdict.now != Accepting {
		return false
	}
	now := s.shared.Clock()
	if !s.shared.NoForgeries && !s.early.mayKeep(now) {
		return false
	}
	k := s.shared.stores.get(s.expected.psn, s.mtu, s.shared.Window, now+keepTimeout)
	if k == nil {
		return false
	}
	s.early.keep(k)
	return true
}

// Keeps reports whether early packets are kept.
func (s *State) Keeps() bool { return s.early.keeps() }

// NextKept returns the next kept packet to be executed, in p. The owner calls it after a packet
// that was InOrder, while Keeps is true, and again after each packet that it returns. It returns
// false if the next packet is missing. It also returns false if the last packet was refused or
// found no receive request, because that packet's PSN is still the expected one. The memory that p
// refers to is valid until the next event.
func (s *State) NextKept(p *wire.Packet) bool {
	k := s.early.kept
	if k.next(s.expected.psn, p) {
		return true
	}
	if k.count == 0 {
		s.dropKept()
		return false
	}
	k.extend(s.shared.Clock() + keepTimeout)
	s.acks.setSelective(true)
	s.early.setGap(s.verdict.now == Accepting)
	return false
}

// OnKeptRefused withdraws the refusal of a packet from NextKept. The packet counts as not received,
// because it may be forged. If it is genuine, the peer retransmits it, and it is refused then.
func (s *State) OnKeptRefused() {
	s.verdict.on(onWithdrawn)
	reported := s.suspect()
	if reported || !s.acks.due { // otherwise the acknowledgement is sent, and the next early packet causes the NAK
		s.verdict.on(onGap)
	}
}

// OnExecuted records that the expected packet, of a SEND or WRITE, was executed. last: it was the
// last of its message.
func (s *State) OnExecuted(last bool) {
	s.acks.executed(s.expected.psn)
	s.expected.advance(1)
	if last {
		s.expected.endMessage()
	}
}

// FastPath reports whether no packet is missing, kept or refused. OnRequest would then return
// InOrder for the expected packet, if its mark is that of the packet before, and change nothing.
func (s *State) FastPath() bool { return s.early == nil && s.verdict.now == Accepting }

// OnExecutedRun records that n expected packets in a row were executed on the fast path. All are of
// one SEND or WRITE, which has more packets.
func (s *State) OnExecutedRun(n uint32) {
	s.acks.executed(wire.PSNAdd(s.expected.psn, n-1))
	s.expected.advance(n)
}

// OnAckRequest records that an executed packet requests an acknowledgement.
func (s *State) OnAckRequest() { s.acks.request() }

// Full reports whether the requester has the allowed number of READs, atomics and the like
// outstanding. Duplicates do not count, because they may have crossed with the response.
func (s *State) Full() bool {
	n := 0
	if s.replies != nil {
		n = s.replies.pending.original()
	}
	return n >= int(s.limit)
}

// Defers reports whether a request that changes memory and has a response must wait for deferred
// ones before it.
func (s *State) Defers() bool { return s.replies != nil && s.replies.pending.deferred() }

// OnAccepted records that the expected packet is a READ, an atomic or the like. The owner sets
// Kind, Deferred, RETH, Orig and Owner of the response; OnAccepted fills in the rest. The response
// acknowledges the request and everything before it.
func (s *State) OnAccepted(r *Response) {
	packets := uint32(1)
	if r.Kind == Read {
		packets = s.packets(r.RETH.Length)
	}
	s.expected.endMessage()
	r.number(s.expected.psn, packets, s.expected.msn)
	all := s.ensureReplies()
	all.history.remember(r, s.limit)
	all.pending.insert(r, s.limit)
	s.expected.advance(packets)
	s.acks.cancel()
}

// packets returns the number of packets that carry n bytes.
func (s *State) packets(n uint32) uint32 { return max(1, (n+s.mtu-1)/s.mtu) }

// OnNotReady records that the expected packet found no receive request. syndrome is that of the RNR
// NAK, with the time to wait.
func (s *State) OnNotReady(syndrome uint8) {
	s.verdict.notReady(syndrome)
	s.ensureRNR().begin(s.expected.psn, s.shared.Clock()+wire.RNRTimer(syndrome&0x1f))
}

// OnRefused records that the expected packet is in error. syndrome is that of the NAK, reason the
// owner's.
func (s *State) OnRefused(syndrome, reason uint8) { s.verdict.refuse(syndrome, reason) }

// repeat answers a duplicate: a SEND or WRITE is acknowledged again, a READ is read again, and all
// others get their first result again (C9-104 ff.).
func (s *State) repeat(p *wire.Packet, m marking) {
	info := p.Opcode.Info()
	if !info.Answered() {
		if info.Known() {
			s.acks.request()
		}
		return
	}
	if s.replies == nil {
		return
	}
	old, into := s.replies.history.find(p.PSN)
	if old == nil || old.Deferred { // its response is still to come
		return
	}
	switch old.Kind {
	case Atomic:
		if info.Atomic() {
			s.answerAgain(old)
		}
	case Empty:
		if info.AtomicWrite() || info.Flush() {
			s.answerAgain(old)
		}
	case Read:
		if info.Read() {
			s.readAgain(p, old, into, m)
		}
	}
}

func (s *State) answerAgain(old *Response) {
	r := old.again(s.expected.msn)
	s.replies.pending.insert(&r, s.limit)
}

// readAgain answers a READ that repeats an earlier one, in full or from a later packet. (rxe
// numbers and checks the responses in the same way.)
func (s *State) readAgain(p *wire.Packet, old *Response, into uint32, m marking) {
	from, packets := uint64(into)*uint64(s.mtu), s.packets(p.RETH.Length)
	same := p.RETH.RKey == old.RETH.RKey && p.RETH.Addr == old.RETH.Addr+from &&
		uint64(p.RETH.Length) <= uint64(old.RETH.Length)-from
	if !same || s.replies.pending.covers(p.PSN, packets) {
		return
	}
	if into > 0 && m == unmarked {
		s.replies.pace.onLoss(old.total(), s.window())
	}
	r := old.readAgain(p, into, packets, s.expected.msn)
	s.replies.pending.insert(&r, s.limit)
}
