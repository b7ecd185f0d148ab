package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

func (s *State) traceChange(e modeEvent) {
	from := s.mode.now
	if s.mode.on(e); s.mode.now != from {
		s.env.Trace(trace.Event{Type: trace.SendMode, From: from.String(), To: s.mode.now.String()})
	}
}

// traceBegin traces the mode and the window at the start of a connection.
func (s *State) traceBegin() {
	if s.env.Trace != nil {
		s.env.Trace(trace.Event{Type: trace.SendMode, From: Failed.String(), To: s.mode.now.String()})
		s.env.Trace(trace.Event{Type: trace.Window, Packets: uint32(s.window.size)})
	}
}

func (s *State) traceWindow(size uint32) {
	from := s.window.size
	if s.window.set(size); s.window.size != from {
		s.env.Trace(trace.Event{Type: trace.Window, Packets: uint32(s.window.size)})
	}
}

// traceLost traces that everything sent from PSN psn on is considered lost.
func (s *State) traceLost(psn uint32) {
	if s.env.Trace != nil {
		s.env.Trace(trace.Event{Type: trace.PacketsLost, PSN: psn, Packets: uint32(wire.PSNDiff(s.flight.max, psn))})
	}
}

// traceLostCount traces that single packets were found missing.
func (s *State) traceLostCount(packets uint32) {
	if s.env.Trace != nil {
		psn, _ := s.board.nextLost(s.flight.max)
		s.env.Trace(trace.Event{Type: trace.PacketsLost, PSN: psn, Packets: packets})
	}
}

// traceProbe traces a probe, which is una or the first packet that the scoreboard retransmits.
func (s *State) traceProbe() {
	if s.env.Trace == nil {
		return
	}
	psn := s.flight.una
	if s.mode.is(Selective) {
		psn, _ = s.board.nextLost(s.flight.max)
	}
	s.env.Trace(trace.Event{Type: trace.ProbeSent, PSN: psn})
}

// traceTimeout traces the retransmission timeout of una.
func (s *State) traceTimeout() {
	if s.env.Trace != nil {
		s.env.Trace(trace.Event{Type: trace.RetransmissionTimeout, PSN: s.flight.una})
	}
}

// traceRNR traces the start of an RNR wait, or its end if wait is 0.
func (s *State) traceRNR(psn uint32, wait time.Duration) {
	if s.env.Trace == nil {
		return
	}
	if wait == 0 {
		s.env.Trace(trace.Event{Type: trace.RNRWaitEnded, PSN: psn})
		return
	}
	s.env.Trace(trace.Event{Type: trace.RNRWaitStarted, PSN: psn, Duration: wait})
}

// traceAlarm traces that an alarm was set.
func (s *State) traceAlarm(k AlarmKind, after time.Duration) {
	if s.env.Trace != nil {
		s.env.Trace(trace.Event{Type: trace.AlarmSet, Detail: k.String(), Duration: after})
	}
}

// traceFired traces that an alarm has gone off.
func (s *State) traceFired(k AlarmKind) {
	if s.env.Trace != nil && k != NoAlarm {
		s.env.Trace(trace.Event{Type: trace.AlarmFired, Detail: k.String()})
	}
}
