package iwarptransport

import "testing"

// Every cell of the table in the comment of phase.go.
func TestPhaseTable(t *testing.T) {
	const (
		shut, awaits, rtr, ends = closed, awaitingPeer, sendingRTR, terminating
	)
	table := map[phase][phaseEventCount]phase{
		//      accepted initiated FPDU RTR due RTR sent failure detach
		shut:   {awaits, open, shut, shut, shut, shut, shut},
		awaits: {awaits, awaits, open, awaits, awaits, shut, shut},
		rtr:    {rtr, rtr, rtr, rtr, open, ends, shut},
		open:   {open, open, open, rtr, open, ends, shut},
		ends:   {ends, ends, ends, ends, ends, ends, shut},
	}
	if len(table) != phaseCount {
		t.Fatalf("%d phases in the table, there are %d", len(table), phaseCount)
	}
	for from, row := range table {
		for e, to := range row {
			l := lifecycle{phase: from}
			if l.on(phaseEvent(e)); l.phase != to {
				t.Errorf("%v, event %d: %v, want %v", from, e, l.phase, to)
			}
		}
	}
}

// The messages that each side may send from start to end.
func TestLifecycle(t *testing.T) {
	message := []byte{1, 2, 3, 4}
	for _, c := range []struct {
		name      string
		initiator bool
		rtr       rtrKind
		do        func(l *lifecycle)
		want      phase
		ended     bool
	}{
		{"an initiator sends at once", true, noRTR, nil, open, false},
		{"an initiator that owes a ready-to-receive message", true, rtrRead, nil, sendingRTR, false},
		{"an initiator that has sent it", true, rtrRead, func(l *lifecycle) { l.on(onRTRSent) }, open, false},
		{"an accepting side waits", false, noRTR, nil, awaitingPeer, false},
		{"an accepting side owes no ready-to-receive message", false, rtrWrite, nil, awaitingPeer, false},
		{"an accepting side waits until the peer has sent", false, noRTR, func(l *lifecycle) { l.on(onPeerFPDU) }, open, false},
		{"a second ready-to-receive message", true, noRTR, func(l *lifecycle) { l.scheduleRTR(rtrWrite) }, sendingRTR, false},
		{"a failure", true, noRTR, func(l *lifecycle) { l.fail(message) }, terminating, true},
		{"a failure before the ready-to-receive message", true, rtrWrite, func(l *lifecycle) { l.fail(message) }, terminating, true},
		{"a failure of a side that may send nothing", false, noRTR, func(l *lifecycle) { l.fail(message) }, closed, true},
		{"a terminated stream stays terminated", true, noRTR,
			func(l *lifecycle) { l.fail(message); l.scheduleRTR(rtrWrite); l.on(onPeerFPDU) }, terminating, true},
		{"the end of the stream", true, noRTR, func(l *lifecycle) { l.on(onDetach) }, closed, true},
	} {
		var l lifecycle
		l.begin(c.initiator, c.rtr)
		if c.do != nil {
			c.do(&l)
		}
		if !l.is(c.want) || l.ended() != c.ended {
			t.Errorf("%s: %v, ended %t; want %v, %t", c.name, l.phase, l.ended(), c.want, c.ended)
		}
		if l.is(sendingRTR) && l.rtr == noRTR || l.is(terminating) && string(l.terminate) != string(message) {
			t.Errorf("%s: ready-to-receive message %d, Terminate message % x", c.name, l.rtr, l.terminate)
		}
	}
}
