package receive

import (
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// trimmed is what a switch has left of packets of the peer. Nothing protects it, so it is a hint:
// it causes an answer, and changes nothing else.
//
// Trimmed packets overtake others. So one says nothing about packets with earlier PSNs, which may
// still arrive.
type trimmed struct {
	psn   uint32
	state trimmedState
	hints send.Hints
	text  [12]byte // buffer for a list
}

type trimmedState uint8

const (
	noneTrimmed trimmedState = iota
	toReport                 // to a peer that marks its packets: psn was trimmed
	// The peer goes back, and psn is the first packet that was trimmed. A NAK is due when it is
	// expected. Before that, a NAK would be one of packets that are on their way.
	awaited
)

// OnTrimmed handles a packet of a SEND or WRITE that has lost its end and its ICRC on the way. Only
// its BTH is valid. It returns false if the packet causes no answer.
func (s *State) OnTrimmed(p *wire.Packet) bool {
	exp, v := &s.expected, &s.verdict
	m, d, span := exp.marking(p), wire.PSNDiff(p.PSN, exp.psn), int32(Span(s.shared.Window, s.mtu))
	near := d < span && d >= -span
	if !near || v.refused() || v.waitsForReceive() || exp.lacksMark(m) {
		return false
	}
	if m == unmarked && v.now != Accepting || d < 0 && !p.AckReq {
		return false // a NAK was sent, or the peer asks nothing
	}
	t := &s.ensureEarly().trimmed
	switch {
	case !t.hints.Allow(s.shared.Clock(), uint32(span)):
		return false
	case d < 0: // a probe: the acknowledgement was lost
		s.acks.request()
	case m != unmarked:
		t.report(p.PSN)
	case d == 0:
		v.on(onGap)
	default:
		t.await(p.PSN)
	}
	return true
}

func (t *trimmed) report(psn uint32) { t.psn, t.state = psn, toReport }

func (t *trimmed) await(psn uint32) {
	if t.state != awaited || wire.PSNDiff(psn, t.psn) < 0 {
		t.psn, t.state = psn, awaited
	}
}

// follows reports whether psn, which has just arrived, comes directly before a packet that was
// trimmed, of a peer that goes back.
func (t *trimmed) follows(psn uint32) bool {
	if t.state != awaited || wire.PSNDiff(t.psn, psn) > 1 {
		return false
	}
	t.state = noneTrimmed
	return t.psn == wire.PSNAdd(psn, 1)
}

// due reports whether a packet is to be reported, which has not arrived meanwhile.
func (t *trimmed) due(expected uint32) bool {
	return t.state == toReport && wire.PSNDiff(t.psn, expected) >= 0
}

// sack returns the report.
func (t *trimmed) sack(expected uint32) wire.Sack {
	return wire.AppendTrimmed(t.text[:0], uint32(wire.PSNDiff(t.psn, expected)))
}

// reported records that the report was sent, or another acknowledgement that makes it needless.
// After 2^23 packets its PSN would be ahead again.
func (t *trimmed) reported() {
	if t.state == toReport {
		t.state = noneTrimmed
	}
}
