package send

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/rdmatransport/trace"
)

func (s *State) traceChange(e modeEvent) {
	from := s.mode.now
	if s.mode.on(e); s.mode.now != from {
		s.env.Trace(trace.Event{Type: trace.SendMode, From: from.String(), To: s.mode.now.String()})
	}
}

// traceBegin tells of the mode and the window that a connection starts with.
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

// traceLost reports whether everything that was sent from PSN psn on is taken for lost.
func (s *State) traceLost(psn uint32) {
	if s.env.Trace != nil {
		s.env.Trace(trace.Event{Type: trace.PacketsLost, PSN: psn, Packets: uint32(wire.PSNDiff(s.flight.max, psn))})
	}
}

// traceFound reports whether so many packets were found missing one by one.
func (s *State) traceLostCount(packets uint32) {
	if s.env.Trace != nil {
		psn, _ := s.board.nextLost(s.flight.max)
		s.env.Trace(trace.Event{Type: trace.PacketsLost, PSN: psn, Packets: packets})
	}
}

// traceProbe reports whether a packet is sent again as a probe: una, or the first that the
// scoreboard has sent again.
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

// traceTimeout reports whether una is overdue.
func (s *State) traceTimeout() {
	if s.env.Trace != nil {
		s.env.Trace(trace.Event{Type: trace.RetransmissionTimeout, PSN: s.flight.una})
	}
}

// traceRNR reports whether the wait for an RNR NAK starts, or ends if it is 0.
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

// traceAlarm reports whether an alarm was set, to go off after some time.
func (s *State) traceAlarm(k AlarmKind, after time.Duration) {
	if s.env.Trace != nil {
		s.env.Trace(trace.Event{Type: trace.AlarmSet, Detail: k.String(), Duration: after})
	}
}

// traceFired reports whether an alarm has gone off.
func (s *State) traceFired(k AlarmKind) {
	if s.env.Trace != nil && k != NoAlarm {
		s.env.Trace(trace.Event{Type: trace.AlarmFired, Detail: k.String()})
	}
}
