package receive

import (
	"testing"
	"time"
)

// What makes it likely that packets are the peer's, and what contradicts that. PSN 10 is expected.
func TestEarly(t *testing.T) {
	const now = time.Minute
	clock := func() time.Duration { return now }
	type step struct {
		psn  uint32
		m    marking
		turn bool // it is expected
		want bool // it is consistent with what came before
	}
	for _, c := range []struct {
		name  string
		steps []step
		until time.Duration // packets may be kept until then
	}{
		{"nothing is missing", []step{{10, newest, true, true}, {11, newest, true, true}}, 0},
		{"a loss", []step{{11, newest, false, true}, {10, again, true, true}}, now + lossMemory},
		{"two in a row", []step{{12, newest, false, true}, {10, again, true, true}, {11, again, true, true}}, now + lossMemory},
		{"the last was lost, and probed for", []step{{11, newest, false, true}, {11, again, false, true}, {10, again, true, true}}, now + lossMemory},
		{"the expected one was not sent yet", []step{{12, newest, false, true}, {10, newest, true, false}}, 0},
		{"one between was not sent yet", []step{{15, newest, false, true}, {12, newest, false, false}}, 0},
		{"one between is sent again", []step{{15, newest, false, true}, {12, again, false, true}}, 0},
		{"the newest comes twice", []step{{15, newest, false, true}, {15, newest, false, true}}, 0},
		{"the expected one catches up", []step{{11, newest, false, true}, {11, newest, true, true}, {12, newest, true, true}}, 0},
		{"not marked", []step{{11, newest, false, true}, {10, unmarked, true, true}}, 0},
	} {
		var e early
		for i, s := range c.steps {
			var got bool
			if s.turn {
				got = e.turn(s.psn, s.m, clock)
			} else {
				got = e.came(s.psn, s.m)
				e.setGap(true)
			}
			if got != s.want {
				t.Errorf("%s: packet %d: consistent %v", c.name, i, got)
			}
		}
		if e.lossy != c.until {
			t.Errorf("%s: packets may be kept until %v, want %v", c.name, e.lossy, c.until)
		}
	}
}

// A packet that is sent again is no sign of a loss where the peer was asked for it because there
// was no receive request.
func TestEarlyWithoutGap(t *testing.T) {
	var e early
	e.came(11, newest)
	e.setGap(false)
	e.turn(10, again, func() time.Duration { return time.Minute })
	if e.mayKeep(time.Minute) {
		t.Error("packets may be kept")
	}
}

// Each loss counts once, and a contradiction is over when it is found.
func TestEarlyOnce(t *testing.T) {
	now := time.Minute
	clock := func() time.Duration { return now }
	var e early
	e.came(15, newest)
	e.setGap(true)
	e.turn(10, again, clock)
	now += time.Millisecond
	if e.turn(11, again, clock); e.lossy != time.Minute+lossMemory {
		t.Error("one loss counts twice")
	}
	e.suspect(now)
	if !e.turn(12, newest, clock) {
		t.Error("one contradiction counts twice")
	}
}

// The times for which packets may be kept, and may not.
func TestEarlyForgets(t *testing.T) {
	now := time.Minute
	lose := func(e *early) {
		e.came(11, newest)
		e.setGap(true)
		e.turn(10, again, func() time.Duration { return now })
	}
	var e early
	if lose(&e); !e.mayKeep(now) || !e.mayKeep(now+lossMemory-1) || e.mayKeep(now+lossMemory) {
		t.Error("a loss is remembered for", e.lossy-now)
	}
	if e.overdue(); e.mayKeep(now) {
		t.Error("what was missing has not come, and packets may be kept")
	}
	lose(&e)
	if e.suspect(now); e.mayKeep(now) {
		t.Error("packets may be kept after a contradiction")
	}
	for now = time.Minute; now < time.Minute+distrust; now += time.Second {
		if lose(&e); e.mayKeep(now) {
			t.Fatal("packets may be kept", now-time.Minute, "after a contradiction")
		}
	}
	if lose(&e); !e.mayKeep(now) {
		t.Error("no packets may be kept", now-time.Minute, "after a contradiction")
	}
}
