package send

import "testing"

func TestAsksWithin(t *testing.T) {
	var w window
	w.init(&Path{Window: 128, Batch: 15, Congestion: Conservation{}}) // an acknowledgement every 30 packets
	for _, c := range []struct {
		name                    string
		sinceAckReq, room, left uint32
		frame, awaited, ask     bool
	}{
		{"in a frame", 40, 60, 60, false, false, false},
		{"at a frame's end", 15, 60, 60, true, false, false},
		{"at a frame's end, and an acknowledgement is due", 30, 60, 60, true, true, true},
		{"a frame's end, no room for another", 15, 10, 60, true, false, true},
		{"the same, with one awaited", 15, 10, 60, true, true, false},
		{"the same, but the rest has room", 15, 10, 10, true, false, false},
		{"the window's end", 5, 0, 60, false, false, true},
		{"the window's end, with one awaited", 5, 0, 60, false, true, false},
	} {
		if got := w.ackReqWithin(c.sinceAckReq, c.room, c.left, c.frame, c.awaited); got != c.ask {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestAckFrequency(t *testing.T) {
	var a ackFrequency
	a.init(0xfffffe)
	a.sent(0xfffffe, 3, false)
	if a.sinceAckReq != 3 || a.awaited(0xfffffe) {
		t.Errorf("%d sinceAckReq", a.sinceAckReq)
	}
	a.sent(1, 2, true)
	if a.sinceAckReq != 0 || !a.awaited(2) || a.awaited(3) {
		t.Errorf("%d sinceAckReq, up to %d", a.sinceAckReq, a.requested)
	}
	if a.acked(2); !a.awaited(2) {
		t.Error("an acknowledgement of earlier packets is not the requested one")
	}
	if a.rewind(2); a.awaited(2) {
		t.Error("a packet to be retransmitted is awaited")
	}
}
