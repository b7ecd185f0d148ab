package receive

import (
	"testing"
	"time"
)

// Evidence for, and contradictions of, early packets being the peer's. PSN 10 is expected.
func TestEarly(t *testing.T) {
	const now = time.Minute
	clock := func() time.Duration { return now }
	type step struct {
		psn  uint32
		m    marking
		turn bool // it is the expected packet
		want bool // it is consistent with the packets before
	}
	for _, c := range []struct {
		name  string
		steps []step
		until time.Duration // packets may be kept until then
	}{
		{"nothing is missing", []step{{10, newest, true, true}, {11, newest, true, true}}, 0},
		{"a loss", []step{{11, newest, false, true}, {10, again, true, true}}, now + lossPeriod},
		{"two in a row", []step{{12, newest, false, true}, {10, again, true, true}, {11, again, true, true}}, now + lossPeriod},
		{"the last was lost, and probed for", []step{{11, newest, false, true}, {11, again, false, true}, {10, again, true, true}},
			now + lossPeriod},
		{"the expected one was not sent yet", []step{{12, newest, false, true}, {10, newest, true, false}}, 0},
		{"one between was not sent yet", []step{{15, newest, false, true}, {12, newest, false, false}}, 0},
		{"one between is retransmitted", []step{{15, newest, false, true}, {12, again, false, true}}, 0},
		{"the newest arrives twice", []step{{15, newest, false, true}, {15, newest, false, true}}, 0},
		{"the expected one catches up", []step{{11, newest, false, true}, {11, newest, true, true}, {12, newest, true, true}}, 0},
		{"not marked", []step{{11, newest, false, true}, {10, unmarked, true, true}}, 0},
	} {
		var e early
		for i, s := range c.steps {
			var got bool
			if s.turn {
				got = e.onExpected(s.psn, s.m, clock)
			} else {
				got = e.onEarly(s.psn, s.m)
				e.setGap(true)
			}
			if got != s.want {
				t.Errorf("%s: packet %d: consistent %v", c.name, i, got)
			}
		}
		if e.keepUntil != c.until {
			t.Errorf("%s: packets may be kept until %v, want %v", c.name, e.keepUntil, c.until)
		}
	}
}

// A retransmission does not show a loss if an RNR NAK requested it.
func TestEarlyWithoutGap(t *testing.T) {
	var e early
	e.onEarly(11, newest)
	e.setGap(false)
	e.onExpected(10, again, func() time.Duration { return time.Minute })
	if e.mayKeep(time.Minute) {
		t.Error("packets may be kept")
	}
}

// Each loss counts once, and each contradiction is reported once.
func TestEarlyOnce(t *testing.T) {
	now := time.Minute
	clock := func() time.Duration { return now }
	var e early
	e.onEarly(15, newest)
	e.setGap(true)
	e.onExpected(10, again, clock)
	now += time.Millisecond
	if e.onExpected(11, again, clock); e.keepUntil != time.Minute+lossPeriod {
		t.Error("one loss counts twice")
	}
	e.suspect(now)
	if !e.onExpected(12, newest, clock) {
		t.Error("one contradiction counts twice")
	}
}

// The periods in which packets may and may not be kept.
func TestEarlyForgets(t *testing.T) {
	now := time.Minute
	lose := func(e *early) {
		e.onEarly(11, newest)
		e.setGap(true)
		e.onExpected(10, again, func() time.Duration { return now })
	}
	var e early
	if lose(&e); !e.mayKeep(now) || !e.mayKeep(now+lossPeriod-1) || e.mayKeep(now+lossPeriod) {
		t.Error("a loss is remembered for", e.keepUntil-now)
	}
	if e.onTimeout(); e.mayKeep(now) {
		t.Error("missing packets have not arrived, and packets may be kept")
	}
	lose(&e)
	if e.suspect(now); e.mayKeep(now) {
		t.Error("packets may be kept after a contradiction")
	}
	for now = time.Minute; now < time.Minute+suspectPeriod; now += time.Second {
		if lose(&e); e.mayKeep(now) {
			t.Fatal("packets may be kept", now-time.Minute, "after a contradiction")
		}
	}
	if lose(&e); !e.mayKeep(now) {
		t.Error("no packets may be kept", now-time.Minute, "after a contradiction")
	}
}
