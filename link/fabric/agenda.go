package fabric

import "math/bits"

// agenda has the events that are to happen, in their order. Those of the near future are in
// buckets, each of a short time, so that it takes the same time to add one however many there are.
// A heap has the events of the bucket that has begun, and another one those after all buckets. If
// the next event is far away when somebody looks for it, its bucket begins early, and what is added
// before it is in the heap too.
type agenda struct {
	soon heap    // events before edge
	edge instant // the end of the bucket that has begun

	number  uint64  // of that bucket
	width   uint    // a bucket is 1<<width picoseconds long
	horizon instant // the end of the last bucket
	heads   [buckets]int32
	filled  [buckets / 64]uint64 // a bit for each bucket that has events
	words   uint64               // a bit for each word of filled that is not 0
	slots   []slot               // of the events in buckets, and unused ones
	unused  int32
	near    int // events in buckets

	later heap
	stale int // events of timers that were stopped, or set to an earlier time

	touched int32 // keeps the compiler from leaving out the loads of begin
}

// buckets is the number of buckets, 64 for each bit of agenda.words.
const buckets = 64 * 64

// slot has an event in a bucket. Slots are numbered from 1 on. Each has the number of the next one
// in its bucket, or of the next unused one. 0 is none.
type slot struct {
	event
	next int32
}

// newAgenda returns an agenda for events of a number a second, most of which happen within a time
// after they were added.
func newAgenda(rate float64, within instant) agenda {
	const few = 4 // events of a bucket
	w := 0
	for w < 40 && (float64(instant(1)<<w) < few/rate*1e12 || instant(buckets)<<w < 2*within) {
		w++
	}
	return agenda{width: uint(w)}
}

// add adds an event, and returns its number.
func (a *agenda) add(at instant, of *origin, to handler, p *packet) uint64 {
	order := of.next()
	if at != never {
		a.put(event{at, order, to, p})
	}
	return order
}

// put adds an event that has its number.
func (a *agenda) put(e event) {
	switch {
	case e.at < a.edge:
		a.soon.put(e)
	case e.at < a.horizon:
		i := a.unused
		if i == 0 {
			a.slots = append(a.slots, slot{})
			i = int32(len(a.slots))
		} else {
			a.unused = a.slots[i-1].next
		}
		b := uint64(e.at) >> a.width % buckets
		a.slots[i-1] = slot{e, a.heads[b]}
		a.heads[b] = i
		a.filled[b/64] |= 1 << (b % 64)
		a.words |= 1 << (b / 64)
		a.near++
	default:
		a.later.put(e)
	}
}

// first returns the next event that has something to do, or nil.
func (a *agenda) first() *event {
	a.settle()
	if len(a.soon.events) == 0 {
		return nil
	}
	return &a.soon.events[0]
}

// refill begins the next bucket with events if the last one has none left. It returns false if
// there are no events.
func (a *agenda) refill() bool {
	for len(a.soon.events) == 0 {
		switch {
		case a.near > 0:
			a.begin(a.number + a.distance())
		case len(a.later.events) > 0:
			a.begin(uint64(a.later.events[0].at) >> a.width)
		default:
			return false
		}
	}
	return true
}

// distance returns how many buckets after the one that has begun the next one with events is.
func (a *agenda) distance() uint64 {
	from := (a.number + 1) % buckets
	word := from / 64
	if w := a.filled[word] >> (from % 64); w != 0 {
		return 1 + uint64(bits.TrailingZeros64(w))
	}
	words := a.words &^ (2<<word - 1)
	if words == 0 {
		words = a.words
	}
	word = uint64(bits.TrailingZeros64(words))
	return (word*64 + uint64(bits.TrailingZeros64(a.filled[word])) - a.number) % buckets
}

// begin begins a bucket: those before it have no events.
func (a *agenda) begin(number uint64) {
	a.number = number
	a.edge = instant(min((number+1)<<a.width, uint64(never)))
	a.horizon = instant(min(uint64(a.edge)+(buckets-1)<<a.width, uint64(never)))
	b := number % buckets
	if i := a.heads[b]; i != 0 {
		for i != 0 {
			s := &a.slots[i-1]
			a.soon.events = append(a.soon.events, s.event)
			if s.p != nil {
				// Each of the loads may have to wait for the memory. Here the processor waits for all at once.
				a.touched += s.p.size
			}
			s.event = event{}
			i, s.next, a.unused = s.next, a.unused, i
			a.near--
		}
		a.empty(b)
		a.soon.build()
	}
	for len(a.later.events) > 0 && a.later.events[0].at < a.horizon {
		a.put(a.later.pop())
	}
}

// empty notes that a bucket has no events.
func (a *agenda) empty(b uint64) {
	a.heads[b] = 0
	if a.filled[b/64] &^= 1 << (b % 64); a.filled[b/64] == 0 {
		a.words &^= 1 << (b / 64)
	}
}

// settle removes stale events from the front, so that the first one has something to do. It does
// nothing while an event is being handled.
func (a *agenda) settle() {
	for !a.soon.hole && a.refill() {
		e := &a.soon.events[0]
		t, ok := e.to.(*timer)
		if !ok || t.isReady(e.order) {
			return
		}
		stale := t.isStale(e.order)
		t.removed(e.order)
		a.soon.hole = true
		if stale {
			a.stale--
		} else {
			t.add() // it was set to a later time
		}
		a.soon.end()
	}
}

// fewStale is the number of stale events that are not worth a search.
const fewStale = 1024

// forget counts a stale event, and removes all when they are more than half of the agenda.
func (a *agenda) forget() {
	if a.stale++; a.stale <= fewStale || a.stale <= (len(a.soon.events)+a.near+len(a.later.events))/2 {
		return
	}
	a.soon.forget()
	a.later.forget()
	for b := range uint64(buckets) {
		kept := int32(0)
		for i := a.heads[b]; i != 0; {
			s := &a.slots[i-1]
			next := s.next
			if s.event.forget() {
				s.event = event{}
				s.next, a.unused = a.unused, i
				a.near--
			} else {
				s.next, kept = kept, i
			}
			i = next
		}
		if a.heads[b] = kept; kept == 0 {
			a.empty(b)
		}
	}
	a.stale = 0
}

// forget returns whether the event is stale. The timer then forgets it.
func (e *event) forget() bool {
	t, ok := e.to.(*timer)
	if !ok || !t.isStale(e.order) {
		return false
	}
	t.removed(e.order)
	return true
}

// heap is a heap of events with four branches: fewer levels than two, and the branches share a
// cache line or two.
type heap struct {
	events []event
	hole   bool // the first event is being handled: the next one to be put takes its place
}

func (h *heap) put(e event) {
	if h.hole {
		h.hole = false
		h.down(0, e)
		return
	}
	h.events = append(h.events, event{})
	h.up(len(h.events)-1, e)
}

// up puts an event at a place or above it.
func (h *heap) up(i int, e event) {
	for i > 0 {
		up := (i - 1) / 4
		if !e.before(&h.events[up]) {
			break
		}
		h.events[i] = h.events[up]
		i = up
	}
	h.events[i] = e
}

// down puts an event at a place or below it.
func (h *heap) down(i int, e event) {
	n := len(h.events)
	for {
		least := 4*i + 1
		if least >= n {
			break
		}
		for k := least + 1; k < min(4*i+5, n); k++ {
			if h.events[k].before(&h.events[least]) {
				least = k
			}
		}
		if !h.events[least].before(&e) {
			break
		}
		h.events[i] = h.events[least]
		i = least
	}
	h.events[i] = e
}

// build makes a heap of events in any order.
func (h *heap) build() {
	for i := (len(h.events) - 2) / 4; i >= 0 && len(h.events) > 1; i-- {
		h.down(i, h.events[i])
	}
}

// begin returns the first event, which leaves a hole. Many events put another one, and that is one
// search instead of two.
func (h *heap) begin() event {
	h.hole = true
	return h.events[0]
}

// end fills the hole that begin has left, if nothing was put.
func (h *heap) end() {
	if !h.hole {
		return
	}
	h.hole = false
	n := len(h.events) - 1
	e := h.events[n]
	h.events[n] = event{}
	h.events = h.events[:n]
	if n > 0 {
		h.down(0, e)
	}
}

func (h *heap) pop() event {
	e := h.begin()
	h.end()
	return e
}

// forget removes stale events.
func (h *heap) forget() {
	h.end()
	n := 0
	for _, e := range h.events {
		if !e.forget() {
			h.events[n] = e
			n++
		}
	}
	clear(h.events[n:])
	h.events = h.events[:n]
	if 4*n < cap(h.events) { // the room of what was forgotten
		h.events = append(make([]event, 0, 2*n), h.events...)
	}
	h.build()
}
