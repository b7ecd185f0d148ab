package rdmatransport

import (
	"context"
	"sync"

	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack"
)

// maxTraced is the largest number of events that wait for a sink, about 10 MiB.
const maxTraced = 1 << 16

// traceQueue passes events to a sink on its own goroutine, with no lock held, because QPs are
// locked when events happen.
type traceQueue struct {
	sink  trace.Sink
	clock stack.Clock

	mu     sync.Mutex // innermost lock
	events []trace.Event
	lost   uint32
	idle   chan struct{} // closed when all are passed on; nil if the goroutine is not running
}

// add adds an event. If too many wait, it is dropped, and a later event reports the loss.
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
		t.clock.Go(t.run)
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
			t.sink(trace.Event{Time: t.clock.Now(), Type: trace.EventsLost, Packets: lost})
		}
		t.mu.Lock()
	}
	close(t.idle)
	t.idle = nil
}

// drain waits until all events are passed on, or ctx ends.
func (t *traceQueue) drain(ctx context.Context) error {
	t.mu.Lock()
	idle := t.idle
	t.mu.Unlock()
	if idle == nil {
		return nil
	}
	t.clock.Park(func() bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		return t.idle != idle || ctx.Err() != nil
	})
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
