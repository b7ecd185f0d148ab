package send

import "testing"

// testBoard has PSNs 0 to n, sent in order. answers are those of READs, which begin at heads.
func testBoard(n uint32, answers, heads []uint32) *scoreboard {
	b := newScoreboard(0, 1024)
	isAnswer := map[uint32]bool{}
	for _, psn := range answers {
		isAnswer[psn] = true
	}
	for psn := range n {
		b.enter(psn, psn+1, n, isAnswer[psn])
	}
	for _, psn := range answers {
		b.at(psn).flags &^= head
	}
	for _, psn := range heads {
		b.enterHead(psn)
	}
	b.entered(0, n)
	return b
}

func lostOf(b *scoreboard, n uint32) (psns []uint32) {
	for psn := range n {
		if b.at(psn).is(lost) {
			psns = append(psns, psn)
		}
	}
	return psns
}

func TestDetectLosses(t *testing.T) {
	for _, c := range []struct {
		name           string
		n              uint32
		answers, heads []uint32
		do             func(b *scoreboard)
		lost           []uint32
		packets        uint32
	}{
		{name: "nothing arrived", n: 10, do: func(*scoreboard) {}},
		{name: "too little evidence", n: 10, do: func(b *scoreboard) { b.sacked(1, 2); b.sacked(2, 3) }},
		{name: "enough evidence", n: 10, do: func(b *scoreboard) { b.sacked(1, 2); b.sacked(3, 4) }, lost: []uint32{0}, packets: 1},
		{name: "two of them", n: 10, do: func(b *scoreboard) { b.sacked(5, 6) }, lost: []uint32{0, 1, 2}, packets: 3},
		{name: "the last has come", n: 3, do: func(b *scoreboard) { b.sacked(2, 3) }, lost: []uint32{0, 1}, packets: 2},
		{name: "executed is not lost", n: 10, do: func(b *scoreboard) { b.executedBefore(3); b.sacked(9, 10) },
			lost: []uint32{3, 4, 5, 6, 7, 8}, packets: 6},
		{name: "a retransmission is not lost yet", n: 10, do: func(b *scoreboard) {
			b.sacked(9, 10)
			b.detectLosses(0, 10)
			b.resent(0, 1, false)
			b.sacked(1, 2)
		}, lost: []uint32{2, 3, 4, 5, 6, 7, 8}},
		{name: "a lost retransmission", n: 10, do: func(b *scoreboard) {
			b.sacked(9, 10)
			b.detectLosses(0, 10)
			for psn := range uint32(5) {
				b.resent(psn, 1, false)
			}
			b.sacked(3, 4)
		}, lost: []uint32{0, 5, 6, 7, 8}, packets: 1},
		{name: "the peer's report had no room", n: 10, do: func(b *scoreboard) {
			b.sacked(4, 6)
			b.sacked(9, 10)
			b.reported(6, false)
		}, lost: []uint32{0, 1, 2, 3}, packets: 4},
		{name: "the peer's report had room", n: 10, do: func(b *scoreboard) {
			b.sacked(4, 6)
			b.sacked(9, 10)
			b.reported(6, true)
		}, lost: []uint32{0, 1, 2, 3, 6, 7, 8}, packets: 7},
		{name: "all reported packets are executed, before the next report", n: 10, do: func(b *scoreboard) {
			b.sacked(4, 6)
			b.reported(6, false)
			b.detectLosses(0, 10)
			b.resent(0, 1, false)
			b.executedBefore(7)
		}},
		{name: "the next list", n: 10, do: func(b *scoreboard) {
			b.sacked(4, 6)
			b.reported(6, false)
			b.executedBefore(6)
			b.sacked(9, 10)
			b.reported(10, true)
		}, lost: []uint32{6, 7, 8}, packets: 3},
		{name: "the next list is cut off, too", n: 10, do: func(b *scoreboard) {
			b.sacked(4, 6)
			b.reported(6, false)
			b.executedBefore(6)
			b.sacked(7, 8)
			b.sacked(9, 10)
			b.reported(8, false)
		}, lost: []uint32{6}, packets: 1},
		{name: "an acknowledgement in place of the next list", n: 10, do: func(b *scoreboard) {
			b.sacked(4, 6)
			b.reported(6, false)
			b.detectLosses(0, 10)
			for psn := range uint32(3) {
				b.resent(psn, 1, false)
			}
			b.reportedByAck(7)
			b.executedBefore(7)
		}, lost: []uint32{7, 8, 9}, packets: 3},
		{name: "an acknowledgement from before the list", n: 10, do: func(b *scoreboard) {
			b.sacked(4, 6)
			b.sacked(9, 10)
			b.reported(6, false)
			b.reportedByAck(2)
			b.executedBefore(2)
		}, lost: []uint32{2, 3}, packets: 2},
		{name: "reported twice, and then retransmitted", n: 10, do: func(b *scoreboard) {
			b.sacked(2, 5)
			b.sacked(2, 6)
			b.markLost(4)
			b.resent(4, 1, false)
			b.sacked(9, 10)
		}, lost: []uint32{0, 1, 6}, packets: 3},
		{name: "a READ's request that the peer keeps, after a lost one", n: 10, answers: []uint32{1, 2, 3, 4}, heads: []uint32{1, 3},
			do: func(b *scoreboard) { b.sacked(3, 4); b.sacked(9, 10) }, lost: []uint32{0, 1, 2, 5, 6, 7, 8}, packets: 6},
		{name: "a READ's request", n: 10, answers: []uint32{2, 3, 4}, heads: []uint32{2},
			do: func(b *scoreboard) { b.executedBefore(2); b.sacked(9, 10) }, lost: []uint32{2, 3, 4, 5, 6, 7, 8}, packets: 5},
		{name: "a READ's request is there", n: 10, answers: []uint32{2, 3, 4}, heads: []uint32{2},
			do: func(b *scoreboard) { b.executedBefore(2); b.sacked(2, 3); b.sacked(9, 10) }, lost: []uint32{5, 6, 7, 8}, packets: 4},
		{name: "a READ's response, overtaken", n: 6, answers: []uint32{0, 1, 2, 3, 4, 5}, heads: []uint32{0},
			do: func(b *scoreboard) { b.answered(3) }, lost: []uint32{0}, packets: 1},
		{name: "a READ's response, overtaken, with the last still to come", n: 6, answers: []uint32{0, 1, 2, 3, 4, 5}, heads: []uint32{0},
			do: func(b *scoreboard) { b.executedBefore(6); b.answered(4) }, lost: []uint32{0, 1}, packets: 2},
		{name: "a READ's responses, by the last", n: 6, answers: []uint32{0, 1, 2, 3, 4, 5}, heads: []uint32{0},
			do: func(b *scoreboard) { b.answered(5) }, lost: []uint32{0, 1, 2, 3, 4}, packets: 5},
	} {
		b := testBoard(c.n, c.answers, c.heads)
		c.do(b)
		packets := b.detectLosses(0, c.n)
		got := lostOf(b, c.n)
		if !equal(got, c.lost) || packets != c.packets || b.lost != len(got) {
			t.Errorf("%s: %d packets, %v lost (%d), want %d, %v", c.name, packets, got, b.lost, c.packets, c.lost)
		}
		if n := b.detectLosses(0, c.n); n != 0 {
			t.Errorf("%s: %d more packets without news", c.name, n)
		}
		if psn, ok := b.nextLost(c.n); ok != (len(got) > 0) || ok && psn != got[0] {
			t.Errorf("%s: %d is sent again first (%v)", c.name, psn, ok)
		}
		b.release()
	}
}

func equal(a, b []uint32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func TestScoreboardProgress(t *testing.T) {
	b := testBoard(8, []uint32{2, 3}, []uint32{2})
	b.executedBefore(6)
	if una := b.acked(0, 8); una != 2 {
		t.Errorf("acknowledged to %d without the answers", una)
	}
	b.answered(3)
	if una := b.acked(0, 8); una != 2 {
		t.Errorf("acknowledged to %d without the first answer", una)
	}
	b.answered(2)
	if una := b.acked(0, 8); una != 6 {
		t.Errorf("acknowledged to %d, want 6", una)
	}
	if b.advance(6); !b.complete(6) {
		t.Error("something is missing")
	}
	b.loseTail(6, 8)
	if got := lostOf(b, 8); !equal(got, []uint32{7}) {
		t.Errorf("a probe has %v sent again", got)
	}
	b.resent(7, 1, false)
	b.sacked(6, 8)
	for range 2 { // until it is sent
		b.loseTail(6, 8)
		if got := lostOf(b, 8); !equal(got, []uint32{6}) {
			t.Errorf("with everything reported, a probe has %v sent again", got)
		}
	}
	b.dropped(6, 8)
	if got := lostOf(b, 8); !equal(got, []uint32{6, 7}) || b.inFlight != 0 {
		t.Errorf("%v is sent again of what the peer dropped, %d in flight", got, b.inFlight)
	}
	b.release()
}
