package rdmatransport

import (
	"context"
	"sync"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/trace"
)

// maxTraced is how many events wait for a sink at most, some 10 MiB.
const maxTraced = 1 << 16

// traceQueue passes events to a sink on a goroutine of its own, with no lock held: QPs are locked
// where they happen.
type traceQueue struct {
	sink trace.Sink

	mu     sync.Mutex // the innermost
	events []trace.Event
	lost   uint32
	idle   chan struct{} // closed when all have been passed on; nil if the goroutine does not run
}

// add adds an event. If very many wait it is lost, and a later event says so.
func (t *traceQueue) add(e trace.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.events) >= maxTraced {
		t.lost++
		return
	}
	t.events = append(t.events, e)
	if t.idle == nil {
		t.idle = make(chan struct{})
		go t.run()
	}
}

func (t *traceQueue) run() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.events) > 0 {
		events, lost := t.events, t.lost
		t.events, t.lost = nil, 0
		t.mu.Unlock()
		for i := range events {
			t.sink(events[i])
		}
		if lost > 0 {
			t.sink(trace.Event{Time: time.Now(), Type: trace.EventsLost, Packets: lost})
		}
		t.mu.Lock()
	}
	close(t.idle)
	t.idle = nil
}

// drain waits until all events have been passed on, or ctx ends.
func (t *traceQueue) drain(ctx context.Context) error {
	t.mu.Lock()
	idle := t.idle
	t.mu.Unlock()
	if idle == nil {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
