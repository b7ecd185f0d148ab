package fabric

import (
	"fmt"
	"time"
)

// Shards run at the same time, apart, until a stop: the end of a run, or a function of Host.Alone.
// On the way they take steps: see step.go. Between, one goroutine has all of them.

// Alone calls f when d has passed, at a time when no host runs, so that it may use all of them.
// The time must be at least Fabric.Lookahead, if it is a function or a process of the host that
// calls Alone; those of other hosts may not. At each call all workers wait for each other, so it
// costs more than a timer.
func (h *Host) Alone(d time.Duration, f func()) {
	fabric, s := h.f, h.shard
	at := max(s.now.after(max(d, 0)), 1)
	do := function(func() {
		for _, s := range fabric.shards {
			s.touchAll()
		}
		f()
	})
	switch {
	case fabric.lookahead == 0:
		s.agenda.add(at, &h.origin, do, nil)
	case fabric.apart && s.acting != h:
		panic("fabric: Host.Alone of another host, while it runs")
	case fabric.apart && d < fabric.Lookahead():
		panic(fmt.Sprintf("fabric: Host.Alone(%v): other hosts run, and it must be at least %v", d, fabric.Lookahead()))
	default:
		if order := h.origin.next(); at != never {
			fabric.addAlone(event{at, order, do, nil})
		}
	}
}

// addAlone adds an event before which all shards stop. If they run, it is at least a lookahead
// after the clock of the shard that adds it. No other shard is further then, and each of them reads
// that clock and then the stop before it goes further.
func (f *Fabric) addAlone(e event) {
	f.stopping.Lock()
	defer f.stopping.Unlock()
	f.alone.put(e)
	f.stopBy(limit{e.at, e.order})
}

// stopBy lets the shards stop at a place, if they don't sooner. The caller has locked stopping.
func (f *Fabric) stopBy(l limit) {
	if f.apart && l.isBefore(*f.stop.Load()) {
		f.stop.Store(&l)
	}
}

// stepAlone handles the next event of alone.
func (f *Fabric) stepAlone() {
	e := f.alone.begin()
	for _, s := range f.shards {
		s.now, s.order, s.place, s.handling = e.at, e.order, limit{e.at, e.order}, true
	}
	f.began = e.at
	e.to.handle(nil)
	for _, s := range f.shards {
		s.handling = false
	}
	f.alone.end()
}

// runApart is advance, with goroutines for the shards. It asks done at instants that do not depend
// on the number of shards.
func (f *Fabric) runApart(end instant, done func() bool) bool {
	if f.busy() {
		panic("fabric: a process or a callback runs the fabric, which runs it")
	}
	defer f.idle()
	for _, s := range f.shards {
		s.order = 0
	}
	f.began = f.shards[0].now
	c := f.hire()
	defer c.dismiss()
	for {
		if done != nil && done() {
			return true
		}
		from := never // shards that a panic has stopped are at different times
		for _, s := range f.shards {
			from = min(from, s.now)
		}
		if !f.someRunnable() {
			s, next := f.first()
			switch {
			case next == nil || next.at > end:
				return false
			case s == nil:
				f.stepAlone()
				continue
			}
			from = next.at
		}
		stop := pastInstant(end)
		if most := f.lookahead * fewAhead; done != nil && end-from > most {
			stop = limit{from - from%most + most, 0}
		}
		if len(f.alone.events) > 0 && f.alone.events[0].within(stop) {
			stop = limit{f.alone.events[0].at, f.alone.events[0].order}
		}
		f.runStretch(c, from, stop)
		f.setNow(f.stop.Load().at)
	}
}

// runStretch lets the shards run at the same time from an instant to a stop, or to one before it.
func (f *Fabric) runStretch(c *crew, from instant, stop limit) {
	f.stop.Store(&stop)
	for _, s := range f.shards {
		s.clock.n.Store(int64(from - from%nanosecond))
		s.next.Store(int64(from))
		s.events = 0
	}
	f.apart = true
	c.start()
	whole := false
	defer func() { // if the first shard does not run to its end, that ends the run
		if !whole {
			c.fail(f.shards[0])
		}
		u := c.wait()
		if f.gather(); whole {
			u.raise()
		}
	}()
	f.shards[0].runSteps(c)
	whole = true
}

// gather follows a stretch.
func (f *Fabric) gather() {
	f.apart = false
	f.work.count(f.shards)
	for _, s := range f.shards {
		s.send() // what a shard has left that has failed
	}
	for _, s := range f.shards {
		s.collect()
		s.resolve(f.mark.Load())
	}
}

// work counts, for benchmarks, the events of stretches: all, and those of each one's busiest shard.
// The quotient is what any number of processors can gain.
type work struct{ events, most uint64 }

func (w *work) count(shards []*shard) {
	most := uint64(0)
	for _, s := range shards {
		w.events += s.events
		most = max(most, s.events)
	}
	w.most += most
}
