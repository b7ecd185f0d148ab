package fabric

import "time"

// instant is a virtual time in picoseconds, from the start of the fabric. At 400 Gbit/s a byte
// takes 20 of them.
type instant int64

const nanosecond instant = 1000

// never is later than all events. It is the latest instant, after 106 days.
const never instant = 1<<63 - 1

// epoch is the time at which the virtual time begins.
var epoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func (t instant) time() time.Time { return epoch.Add(time.Duration(t / nanosecond)) }

// after returns the instant d later, in whole nanoseconds, which is not before t.
func (t instant) after(d time.Duration) instant {
	if instant(d) >= (never-t)/nanosecond {
		return never
	}
	return max((t/nanosecond+instant(d))*nanosecond, t)
}

// event is what happens at an instant. Events of one instant happen in the order of the nodes that
// have added them, and of one node in that of their number. So it does not matter to a node what
// happens elsewhere at that time.
type event struct {
	at    instant
	order uint64
	to    handler
	p     *packet
}

// handler is what an event happens to.
type handler interface{ handle(p *packet) }

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// origin numbers the events of a node.
type origin struct{ last uint64 }

// eventBits is the number of bits of an event's number that count those of one node. The others are
// the node's.
const eventBits = 40

// originOf returns the origin of a node: 0 is the fabric itself, then come the hosts, and then the
// switches.
func originOf(node int) origin { return origin{uint64(node) << eventBits} }

func (o *origin) next() uint64 {
	o.last++
	return o.last
}

// function is a handler that calls a function.
type function func()

func (f function) handle(*packet) { f() }

// timer is a timer of a host's clock. It has one event in the agenda that is not stale, or one that
// is early, for the time that it was set to before. When stale events are removed depends on the
// workers, so nothing else may follow from it: the number of the event is that of the last Reset.
type timer struct {
	h      *Host
	f      func()
	due    instant // 0: not set
	number uint64  // of the event that is due
	at     instant // of its event
	order  uint64  // of its event; 0: none
}

// isStale says whether an event with a number has nothing to do.
func (t *timer) isStale(order uint64) bool { return t.order != order || t.due == 0 }

// isReady says whether an event with a number is the one that is due.
func (t *timer) isReady(order uint64) bool {
	return t.order == order && t.due != 0 && t.number == order
}

// removed is called when an event is no longer in the agenda.
func (t *timer) removed(order uint64) {
	if t.order == order {
		t.order = 0
	}
}

// handle runs the function. The agenda is settled, so the timer is due.
func (t *timer) handle(*packet) {
	t.due, t.order = 0, 0
	t.h.shard.acting = t.h
	t.h.touched()
	t.f()
}

// add adds the event for the time that is due.
func (t *timer) add() {
	if t.at, t.order = t.due, t.number; t.due == never {
		t.order = 0
		return
	}
	t.h.shard.agenda.put(event{t.due, t.number, t, nil})
}

// Reset implements clock.Timer.
func (t *timer) Reset(d time.Duration) bool {
	set, s := t.due != 0, t.h.shard
	t.due, t.number = max(s.now.after(max(d, 0)), 1), t.h.origin.next()
	switch {
	case t.order != 0 && t.at <= t.due: // the event will look again
		if !set {
			s.agenda.stale--
		}
		return set
	case t.order != 0 && set:
		t.order = 0
		s.agenda.forget()
	}
	t.add()
	return set
}

// Stop implements clock.Timer.
func (t *timer) Stop() bool {
	set := t.due != 0
	t.due = 0
	if set && t.order != 0 {
		t.h.shard.agenda.forget()
	}
	return set
}
