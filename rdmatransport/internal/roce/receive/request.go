package receive

import (
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// Outcome is what OnRequest says of a request packet, for the owner to act on and to count. If it
// is neither InOrder nor a Duplicate, the packet came too early, or is not the peer's, or the
// connection has ended.
type Outcome uint8

const (
	InOrder   Outcome = 1 << iota // it is to be executed, and then what NextKept hands out
	Duplicate                     // it was executed before; what it is answered with is due
	Gap                           // a packet before it was found to be missing
	Suspect                       // it, or a packet that came before, is perhaps not the peer's
)

// Has reports whether an outcome is what is asked for.
func (o Outcome) Has(any Outcome) bool { return o&any != 0 }

// OnRequest is told of a request packet, and says what it is. What the peer has to be told of it is
// due from then on.
func (s *State) OnRequest(p *wire.Packet) Outcome {
	e := &s.expected
	if s.verdict.refused() {
		return 0
	}
	m := e.marking(p)
	if e.lacks(m) {
		return Suspect
	}
	switch d := wire.PSNDiff(p.PSN, e.psn); {
	case d < 0:
		s.repeat(p, m)
		return Duplicate
	case d > 0:
		return s.onEarly(p, m, d)
	}
	s.verdict.on(onTurn)
	if m != unmarked {
		e.marks()
	}
	if s.early == nil {
		return InOrder
	}
	return InOrder | s.onTurn(m)
}

// onTurn notes that the expected packet has come, after others came too early. The outcome is
// Suspect if that contradicts them.
func (s *State) onTurn(m marking) (o Outcome) {
	psn := s.expected.psn
	if !s.early.turn(psn, m, s.shared.Clock) {
		s.suspect()
		o = Suspect
	}
	if s.early.keeps() {
		s.early.kept.begin(psn)
	}
	return o
}

// onEarly handles a packet that came d packets too early.
func (s *State) onEarly(p *wire.Packet, m marking, d int32) (o Outcome) {
	if m != unmarked && p.Opcode.Info().Known() && fits(p, d, s.mtu, s.shared.Window) {
		var kept bool
		if o, kept = s.keep(p, m); kept {
			return o
		}
	}
	v := &s.verdict
	switch told := v.now != Accepting; {
	case !told, v.waitsForReceive() && s.repeatedWithout(p.PSN):
		o |= Gap
		if s.early != nil {
			s.early.setGap(!told)
		}
		v.on(onGap)
	case m != unmarked && p.AckReq && !v.waitsForReceive():
		v.on(onGap) // a peer that marks its packets probes with the last one, and goes back only once for a loss
	}
	return o
}

// repeatedWithout reports whether a packet shows that the one that an RNR NAK was about was sent
// again, and lost.
func (s *State) repeatedWithout(psn uint32) bool {
	if s.verdict.now == RNRSent && s.rnr.repeatedWithout(psn, s.expected.psn, s.shared.Clock) {
		return true
	}
	s.rnr.came(psn)
	return false
}

// keep keeps a marked packet that came too early, if it can; otherwise the peer has to send the
// packet again.
func (s *State) keep(p *wire.Packet, m marking) (o Outcome, kept bool) {
	e := s.ensureEarly()
	if !e.came(p.PSN, m) {
		s.suspect()
		e.came(p.PSN, m)
		return Suspect, false
	}
	if e.kept == nil && !s.startKeeping() {
		return 0, false
	}
	gap, tell, ok := e.kept.add(p)
	if !ok {
		s.suspect()
		return Suspect, false
	}
	if gap {
		o = Gap
	}
	if tell {
		s.acks.setSelective(true)
	}
	return o, true
}

// startKeeping takes a store, if there is one and packets may be kept. They may not if the missing
// packet was asked for before, or has come and found no receive request.
func (s *State) startKeeping() bool {
	if s.verdict.now != Accepting {
		return false
	}
	now := s.shared.Clock()
	if !s.early.mayKeep(now) {
		return false
	}
	k := s.shared.stores.take(s.expected.psn, s.mtu, s.shared.Window, now+keepLongest)
	if k == nil {
		return false
	}
	s.early.keep(k)
	return true
}

// Keeps reports whether packets are kept that came too early.
func (s *State) Keeps() bool { return s.early.keeps() }

// NextKept hands out the next kept packet whose turn has come, to be executed. It is called after a
// packet that was InOrder, while Keeps is true, and again after each packet that it hands out. It
// returns false if there is none, or if the last packet was refused or found no receive request, so
// that its PSN is still the expected one. What p refers to is valid until the next event.
func (s *State) NextKept(p *wire.Packet) bool {
	k := s.early.kept
	if k.next(s.expected.psn, p) {
		return true
	}
	if k.count == 0 {
		s.dropKept()
		return false
	}
	k.extend(s.shared.Clock() + keepLongest)
	s.acks.setSelective(true)
	s.early.setGap(s.verdict.now == Accepting)
	return false
}

// OnKeptRefused takes the refusal of a packet from NextKept back. The packet counts as if it had
// not come, as it may not be the peer's. If it is, the peer sends it again, and it is refused when
// it comes in its turn.
func (s *State) OnKeptRefused() {
	s.verdict.on(onWithdrawn)
	s.suspect()
	if !s.acks.due { // else the acknowledgement goes, and a packet from further on brings the NAK
		s.verdict.on(onGap)
	}
}

// OnExecuted is told that the expected packet, of a SEND or WRITE, was executed. last: it completed
// its message.
func (s *State) OnExecuted(last bool) {
	s.acks.executed(s.expected.psn)
	s.expected.advance(1)
	if last {
		s.expected.endMessage()
	}
}

// Undisturbed reports whether no packet is missing, kept or refused: the one that is expected, with
// the mark of the one before, is InOrder, and that is all that OnRequest would find.
func (s *State) Undisturbed() bool { return s.early == nil && s.verdict.now == Accepting }

// OnExecutedRun is told, while it is Undisturbed, that n expected packets in a row were executed,
// of one SEND or WRITE, which goes on behind them.
func (s *State) OnExecutedRun(n uint32) {
	s.acks.executed(wire.PSNAdd(s.expected.psn, n-1))
	s.expected.advance(n)
}

// OnAckRequest is told that a packet that was executed asks for an acknowledgement.
func (s *State) OnAckRequest() { s.acks.ask() }

// Full reports whether the requester has as many READs, atomics and the like outstanding as it may.
// What it repeats does not count: that may have been on its way when the response was.
func (s *State) Full() bool {
	n := 0
	if s.replies != nil {
		n = s.replies.pending.original()
	}
	return n >= int(s.limit)
}

// Defers reports whether a request that changes memory, and is answered, has to wait for others
// that are deferred.
func (s *State) Defers() bool { return s.replies != nil && s.replies.pending.deferred() }

// OnAccepted is told that the expected packet is a READ, an atomic or the like, and what it is
// answered with: Kind, Deferred, RETH, Orig and Owner; it fills in the rest. The response will
// acknowledge it, and all that came before it.
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
	s.acks.answer()
}

// packets is how many packets carry n bytes.
func (s *State) packets(n uint32) uint32 { return max(1, (n+s.mtu-1)/s.mtu) }

// OnNotReady is told that the expected packet has found no receive request. The syndrome is the RNR
// NAK's, which asks for that long to wait.
func (s *State) OnNotReady(syndrome uint8) {
	s.verdict.notReady(syndrome)
	s.ensureRNR().begin(s.expected.psn, s.shared.Clock()+wire.RNRTimer(syndrome&0x1f))
}

// OnRefused is told that the expected packet is in error: the NAK's syndrome, and the owner's
// reason.
func (s *State) OnRefused(syndrome, reason uint8) { s.verdict.refuse(syndrome, reason) }

// repeat answers what was executed before: data is acknowledged again, READs are read again, all
// else is answered with the result it had (C9-104 ff.).
func (s *State) repeat(p *wire.Packet, m marking) {
	info := p.Opcode.Info()
	if !info.Answered() {
		if info.Known() {
			s.acks.ask()
		}
		return
	}
	if s.replies == nil {
		return
	}
	old, into := s.replies.history.find(p.PSN)
	if old == nil || old.Deferred { // that will be answered
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

// readAgain answers a READ that repeats an old one, or the end of it, from some packet on. (rxe
// numbers and checks it so, too.)
func (s *State) readAgain(p *wire.Packet, old *Response, into uint32, m marking) {
	from, packets := uint64(into)*uint64(s.mtu), s.packets(p.RETH.Length)
	same := p.RETH.RKey == old.RETH.RKey && p.RETH.Addr == old.RETH.Addr+from &&
		uint64(p.RETH.Length) <= uint64(old.RETH.Length)-from
	if !same || s.replies.pending.covers(p.PSN, packets) {
		return
	}
	if into > 0 && m == unmarked {
		s.replies.pace.missed(old.total(), s.window())
	}
	r := old.readAgain(p, into, packets, s.expected.msn)
	s.replies.pending.insert(&r, s.limit)
}
