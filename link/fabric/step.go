package fabric

import "sync/atomic"

// While shards run at the same time, each has a clock: it has handled all events before that, and
// the others can have what it has sent in them. What a shard sends arrives a lookahead later, or
// more. So it may handle events up to a lookahead after the others' clocks (Chandy and Misra 1979;
// Bryant 1977). It does so in steps, so that those who wait for it need not wait long. A shard with
// less to do at one time and more at another loses nothing, as long as it is not a lookahead ahead.

const (
	// steps is the number of steps of a lookahead.
	steps = 8
	// fewAhead is a number of lookaheads. If nothing happens for longer, the shards stop, and begin
	// again when something happens, instead of going through all of them. They also stop after so many
	// if somebody wants to know whether to go on.
	fewAhead = 8
)

// shared is what other shards read and write of a shard.
type shared struct {
	clock    level
	next     atomic.Int64    // the time of its next event, or of the first that it has sent; a hint
	unused   [3]atomic.Int32 // packets of its pools; hints
	arriving batches         // sent to it
	returned batches         // it has sent these, and they are empty
	_        gap
}

// batch is the events that a shard has sent to another one in a step. An event without a handler
// brings an unused packet.
type batch struct {
	next   *batch
	from   *shard
	events []event
}

// batches is a list. Who takes takes all.
type batches struct{ first atomic.Pointer[batch] }

func (l *batches) add(b *batch) {
	for {
		b.next = l.first.Load()
		if l.first.CompareAndSwap(b.next, b) {
			return
		}
	}
}

func (l *batches) take() *batch {
	if l.first.Load() == nil {
		return nil
	}
	return l.first.Swap(nil)
}

// runSteps runs the shard up to the stop of all, or until another one has failed.
func (s *shard) runSteps(c *crew) {
	f := s.f
	step := f.lookahead / steps / nanosecond * nanosecond
	for {
		// The clocks are read first: what a shard has sent, its stop and its failure come before its
		// clock.
		slowest, least := s.slowest()
		if c.failed.Load() {
			s.clock.raise(int64(never))
			return
		}
		stop := *f.stop.Load()
		l := limit{least + min(f.lookahead, never-least), 0}
		if !l.isBefore(stop) {
			l = stop
		}
		now := instant(s.clock.n.Load())
		if l.at <= now && l != stop {
			slowest.clock.await(int64(now-f.lookahead+1), int64(now), c.looks)
			continue
		}
		s.collect()
		begins := max(s.begins(), now)
		if s.index == 0 && begins >= l.at && f.pause(now, stop) {
			continue
		}
		// Alone rounds down to nanoseconds, and so do clocks: what it adds is never before a clock and
		// a lookahead.
		if end := begins - begins%nanosecond + min(step, never-begins); begins < l.at && end < l.at {
			l = limit{end, 0}
		}
		if m := f.mark.Load(); m != nil && l.at-m.at > keepsSent*f.lookahead {
			s.resolve(m)
		}
		s.soonest = never
		s.run(l)
		if l.at/f.lookahead != now/f.lookahead {
			s.share()
		}
		s.send()
		s.next.Store(int64(min(s.begins(), s.soonest)))
		s.clock.raise(int64(l.at))
		if l == stop {
			return
		}
	}
}

// slowest returns the shard that is behind the other ones, and its clock. s does not count.
func (s *shard) slowest() (slowest *shard, clock instant) {
	clock = never
	for _, o := range s.f.shards {
		if o == s {
			continue
		}
		if at := instant(o.clock.n.Load()); slowest == nil || at < clock {
			slowest, clock = o, at
		}
	}
	return slowest, clock
}

// begins returns when the shard has something to do next.
func (s *shard) begins() instant {
	if len(s.runnable) > 0 || len(s.changed) > 0 {
		return s.now
	}
	if e := s.agenda.first(); e != nil {
		return e.at
	}
	return never
}

// pause lets all shards stop if nothing happens for long. The first one calls it at its clock: no
// other one is more than a lookahead ahead. It returns false if it does nothing.
func (f *Fabric) pause(now instant, stop limit) bool {
	long := fewAhead * f.lookahead
	if stop.at-now <= long {
		return false
	}
	for _, s := range f.shards {
		if instant(s.next.Load())-now <= long {
			return false
		}
	}
	f.stopping.Lock()
	defer f.stopping.Unlock()
	f.stopBy(limit{now + f.lookahead, 0})
	return true
}

// send passes on what happens in other shards.
func (s *shard) send() {
	for i, b := range s.out {
		if len(b.events) > 0 {
			s.out[i] = s.emptyBatch()
			s.f.shards[i].arriving.add(b)
		}
	}
}

func (s *shard) emptyBatch() *batch {
	if s.empty == nil {
		s.empty = s.returned.take()
	}
	b := s.empty
	if b == nil {
		return &batch{from: s}
	}
	s.empty = b.next
	return b
}

// collect takes over what the others have sent. Events have their places, so it does not matter who
// adds them, and when.
func (s *shard) collect() {
	for b := s.arriving.take(); b != nil; {
		for _, e := range b.events {
			if e.to == nil {
				s.free(e.p)
			} else {
				s.agenda.put(e)
			}
		}
		clear(b.events)
		b.events = b.events[:0]
		next := b.next
		b.from.returned.add(b)
		b = next
	}
}

// share gives unused packets to the shard with the fewest, if they differ much. Packets are freed
// where they arrive.
func (s *shard) share() {
	for i, p := range []*pool{&s.small, &s.middle, &s.large} {
		n := len(*p)
		s.unused[i].Store(int32(n))
		fewest, to := n, s
		for _, o := range s.f.shards {
			if has := int(o.unused[i].Load()); has < fewest {
				fewest, to = has, o
			}
		}
		const few = 64
		if n < 2*fewest+few {
			continue
		}
		keep := n - (n-fewest)/2
		b := s.out[to.index]
		for _, u := range (*p)[keep:] {
			b.events = append(b.events, event{p: u})
		}
		clear((*p)[keep:])
		*p = (*p)[:keep]
	}
}
