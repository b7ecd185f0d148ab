package fabric

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestAgenda: events come in the order of their instants and numbers, near and far ones, those that
// are added meanwhile, also before the next one, and those of timers that were stopped and set
// again. Removing what is stale changes nothing.
func TestAgenda(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 0))
		f, err := New(&Config{Topology: Star(2)})
		if err != nil {
			t.Fatal(err)
		}
		h := f.hosts[0]
		s := h.shard
		s.agenda = newAgenda([]float64{1e3, 1e9, 1e12, 1e15}[seed%4], []instant{0, 1000, 1e6, 1e12}[seed/4%4])
		var got, want []instant
		var plan func()
		at := func() time.Duration {
			// From less than a bucket to more than all of them.
			return time.Duration(random.Int64N(1 << random.IntN(40)))
		}
		var timers []*timer
		due := map[*timer]instant{}
		reset := func(tm *timer) {
			d := at()
			due[tm] = max(s.now.after(d), 1)
			tm.Reset(d)
		}
		left := 3000
		plan = func() {
			for range random.IntN(4) {
				if left--; left < 0 {
					return
				}
				switch random.IntN(3) {
				case 0:
					then := s.now.after(at())
					want = append(want, then)
					s.agenda.add(then, &h.origin, function(func() { got = append(got, s.now); plan() }), nil)
				case 1:
					tm := &timer{h: h}
					tm.f = func() {
						got = append(got, s.now)
						if at, set := due[tm]; !set || at != s.now {
							t.Errorf("seed %d: a timer runs at %d, which is due at %d: %t", seed, s.now, at, set)
						}
						delete(due, tm)
						plan()
					}
					reset(tm)
					timers = append(timers, tm)
				default:
					for range random.IntN(40) { // stale ones
						(&timer{h: h, f: func() { t.Error("a timer runs that was stopped") }}).stopAfter(at())
					}
				}
			}
			if len(timers) > 0 {
				tm := timers[random.IntN(len(timers))]
				switch set := tm.due != 0; {
				case set && random.IntN(4) == 0:
					tm.Stop()
					delete(due, tm)
				case set:
					reset(tm)
				}
			}
		}
		for left > 0 {
			plan()
			for range random.IntN(50) {
				s.step(limit{never, 0})
			}
		}
		for s.step(limit{never, 0}) {
		}
		for _, at := range due {
			t.Fatalf("seed %d: a timer is due at %d, and has not run", seed, at)
		}
		if !slices.IsSorted(got) || len(got) < len(want) {
			t.Fatalf("seed %d: %d events, at least %d were added; in order: %t", seed, len(got), len(want), slices.IsSorted(got))
		}
		for _, at := range want {
			if _, there := slices.BinarySearch(got, at); !there {
				t.Fatalf("seed %d: nothing has happened at %d", seed, at)
			}
		}
		if a := &s.agenda; a.near != 0 || len(a.soon.events) != 0 || len(a.later.events) != 0 || a.words != 0 {
			t.Fatalf("seed %d: %d, %d and %d events are left", seed, a.near, len(a.soon.events), len(a.later.events))
		}
	}
}

// stopAfter sets a timer and stops it.
func (t *timer) stopAfter(d time.Duration) {
	t.Reset(d)
	t.Stop()
}

// TestAgendaAtTheEnd: events of the latest instants have their order too.
func TestAgendaAtTheEnd(t *testing.T) {
	var a agenda
	of := originOf(1)
	for _, at := range []instant{never - 1, never - 1<<20, never - 3, 5, never - 2, never} {
		a.add(at, &of, function(nil), nil)
	}
	for _, want := range []instant{5, never - 1<<20, never - 3, never - 2, never - 1} {
		e := a.first()
		if e == nil || e.at != want {
			t.Fatalf("the next event is %v, not at %d", e, want)
		}
		a.soon.pop()
	}
	if e := a.first(); e != nil {
		t.Errorf("an event is left: %v", e)
	}
}
