package iwarptransport

import (
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// Each step of the cursor in a queue of four requests.
func TestCursor(t *testing.T) {
	type place struct {
		first, next uint64
		off         uint64
		progress    progress
		oldestDone  bool
		unsent      int // with four posted requests
		mayMove     bool
		inData      bool
	}
	steps := func(do ...func(c *cursor)) []func(c *cursor) { return do }
	advance := func(n uint64) func(c *cursor) { return func(c *cursor) { c.advance(n) } }
	movedTo := func(n uint64) func(c *cursor) { return func(c *cursor) { c.movedTo(n) } }
	step := func(done bool) func(c *cursor) { return func(c *cursor) { c.step(done) } }
	responded := func(n uint64) func(c *cursor) { return func(c *cursor) { c.responded(n) } }
	complete := (*cursor).completeOldest
	for _, x := range []struct {
		name string
		do   []func(c *cursor)
		want place
	}{
		{"the start", nil, place{unsent: 4, mayMove: true}},
		{"two segments of a message", steps(advance(100), advance(50)), place{off: 150, progress: inMessage, unsent: 4, inData: true}},
		{"a whole message without a response", steps(advance(100), step(true)),
			place{next: 1, oldestDone: true, unsent: 3, mayMove: true}},
		{"a request with a response", steps(step(false)), place{next: 1, unsent: 3, mayMove: true}},
		{"its response", steps(step(false), responded(0)), place{next: 1, oldestDone: true, unsent: 3, mayMove: true}},
		{"a request after it completes before it", steps(step(false), step(true)), place{next: 2, unsent: 2, mayMove: true}},
		{"complete one", steps(step(true), step(false), complete), place{first: 1, next: 2, unsent: 3, mayMove: true}},
		{"complete two", steps(step(true), step(true), complete, complete), place{first: 2, next: 2, unsent: 4, mayMove: true}},
		{"the state of a request does not outlive it",
			steps(step(true), complete, step(true), complete, step(true), complete, step(true), complete),
			place{first: 4, next: 4, unsent: 4, mayMove: true}},
		{"the data of a WRITE with immediate data", steps(advance(100), (*cursor).advanceToImmediate),
			place{off: 100, progress: beforeImmediate, unsent: 4}},
		{"a WRITE of no bytes with immediate data", steps((*cursor).advanceToImmediate), place{progress: beforeImmediate, unsent: 4}},
		{"and the immediate data", steps((*cursor).advanceToImmediate, step(true)),
			place{next: 1, oldestDone: true, unsent: 3, mayMove: true}},
		{"a part that was copied directly", steps(movedTo(1000)),
			place{off: 1000, progress: partlyMoved, unsent: 4, mayMove: true, inData: true}},
		{"and the rest", steps(movedTo(1000), (*cursor).moved), place{first: 1, next: 1, unsent: 4, mayMove: true}},
		{"the rest goes through the stream", steps(movedTo(1000), (*cursor).useStream),
			place{off: 1000, progress: inMessage, unsent: 4, inData: true}},
		{"all of it goes through the stream", steps((*cursor).useStream), place{unsent: 4, mayMove: true}},
		{"a segment after a part that was copied directly", steps(movedTo(1000), (*cursor).useStream, advance(10)),
			place{off: 1010, progress: inMessage, unsent: 4, inData: true}},
		{"a new stream", steps(step(true), advance(10), (*cursor).reset), place{unsent: 4, mayMove: true}},
	} {
		var c cursor
		c.init(4)
		for _, do := range x.do {
			do(&c)
		}
		got := place{c.first, c.next, c.off, c.progress, c.oldestDone(), c.unsent(4), c.mayMove(), c.inData()}
		if got != x.want {
			t.Errorf("%s: %+v, want %+v", x.name, got, x.want)
		}
		if c.atOldest() != (c.first == c.next) || c.index(c.next) != int(c.next-c.first) {
			t.Errorf("%s: at the oldest %t, index %d", x.name, c.atOldest(), c.index(c.next))
		}
	}
}

// A local operation may fail before it is the oldest request. When it is the oldest, the request
// fails with the same reason.
func TestCursorRemembersRefusals(t *testing.T) {
	var c cursor
	c.init(4)
	c.step(false)
	c.refuse(verbs.WCLocQPOpErr)
	if got := c.refusal(); got != verbs.WCLocQPOpErr || c.atOldest() {
		t.Errorf("refusal %v, at the oldest %t", got, c.atOldest())
	}
	c.responded(0)
	c.completeOldest()
	if got := c.refusal(); got != verbs.WCLocQPOpErr || !c.atOldest() {
		t.Errorf("with those before it complete: refusal %v, at the oldest %t", got, c.atOldest())
	}
	c.step(true)
	if got := c.refusal(); got != verbs.WCSuccess {
		t.Errorf("the request after it: %v", got)
	}
	c.refuse(verbs.WCLocQPOpErr)
	c.reset()
	for range 4 {
		if got := c.refusal(); got != verbs.WCSuccess {
			t.Errorf("on a new stream: %v", got)
		}
		c.step(true)
	}
}

// Responses belong to the oldest READ or atomic. A ready-to-receive READ counts until its response
// has arrived.
func TestOutstandingReads(t *testing.T) {
	var r reads
	r.rtrSent()
	r.sent(3)
	r.sent(7)
	if r.outstanding() != 3 || r.list[0] != (outstandingRead{3, 0}) || r.list[1] != (outstandingRead{7, 1}) {
		t.Fatalf("%d outstanding: %v", r.outstanding(), r.list)
	}
	r.rtrResponded()
	r.place(100)
	if n := r.responded(); n != 3 || r.outstanding() != 1 || r.placed != 0 {
		t.Errorf("response for request %d, then %d outstanding, %d bytes placed", n, r.outstanding(), r.placed)
	}
	r.moved() // each uses an identifier
	r.sent(9)
	if want := (outstandingRead{9, 3}); r.list[1] != want {
		t.Errorf("%v, want %v", r.list[1], want)
	}
}
