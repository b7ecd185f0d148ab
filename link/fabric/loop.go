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

// event is what happens at an instant. Events of one instant happen in the order in which they were
// added. As nothing runs at the same time, that order is the same in each run.
type event struct {
	at    instant
	order uint64
	to    handler
	p     *packet
}

type handler interface{ handle(p *packet) }

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.order < o.order }

// agenda is a heap of events with four branches: fewer levels than two, and the branches share a
// cache line or two.
type agenda struct {
	events []event
	added  uint64
}

func (a *agenda) add(at instant, to handler, p *packet) {
	if at == never {
		return
	}
	a.added++
	e := event{at, a.added, to, p}
	i := len(a.events)
	a.events = append(a.events, e)
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&a.events[up]) {
			break
		}
		a.events[i] = a.events[up]
		i = up
	}
	a.events[i] = e
}

func (a *agenda) take() event {
	first := a.events[0]
	n := len(a.events) - 1
	e := a.events[n]
	a.events[n] = event{}
	a.events = a.events[:n]
	i := 0
	for {
		least := 4*i + 1
		if least >= n {
			break
		}
		for k := least + 1; k < min(4*i+5, n); k++ {
			if a.events[k].before(&a.events[least]) {
				least = k
			}
		}
		if !a.events[least].before(&e) {
			break
		}
		a.events[i] = a.events[least]
		i = least
	}
	if n > 0 {
		a.events[i] = e
	}
	return first
}

// step handles the next event up to an instant. It returns false if there is none.
func (f *Fabric) step(end instant) bool {
	if len(f.agenda.events) == 0 || f.agenda.events[0].at > end {
		return false
	}
	e := f.agenda.take()
	f.now = e.at
	f.handling = true
	e.to.handle(e.p)
	f.handling = false
	return true
}

// advance runs processes and events until an instant, or until done returns true. It returns false
// if that does not happen.
func (f *Fabric) advance(end instant, done func() bool) bool {
	if f.running != nil || f.handling {
		panic("fabric: a process or a callback runs the fabric, which runs it")
	}
	for {
		f.runProcesses()
		if done != nil && done() {
			return true
		}
		if !f.step(end) {
			return false
		}
	}
}

// function is a handler that calls a function.
type function func()

func (f function) handle(*packet) { f() }

// timer is a timer of a host's clock.
type timer struct {
	h   *Host
	f   func()
	due instant // 0: not set
}

// handle runs the function, unless the timer was stopped or set again meanwhile.
func (t *timer) handle(*packet) {
	if t.due == 0 || t.due != t.h.f.now {
		return
	}
	t.due = 0
	t.h.touched()
	t.f()
}

// Reset implements clock.Timer.
func (t *timer) Reset(d time.Duration) bool {
	set, f := t.due != 0, t.h.f
	if at := max(f.now.after(max(d, 0)), 1); at != t.due {
		t.due = at
		f.agenda.add(at, t, nil)
	}
	return set
}

// Stop implements clock.Timer.
func (t *timer) Stop() bool {
	set := t.due != 0
	t.due = 0
	return set
}
