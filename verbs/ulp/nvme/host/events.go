package host

import (
	"context"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// EventReset is the event of a Reset. It is not one of the controller: what was read from it may be
// out of date.
const EventReset nvme.Async = 0xffffffff

// events are the events that the application has not taken, each once.
type events struct {
	mu      sync.Mutex
	pending []nvme.Async
	added   chan struct{} // has an element if pending is not empty
}

const maxEvents = 64 // more are dropped

func (e *events) init() { e.added = make(chan struct{}, 1) }

// add adds an event, unless it is pending.
func (e *events) add(a nvme.Async) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(e.pending, a) || len(e.pending) == maxEvents {
		return
	}
	e.pending = append(e.pending, a)
	e.signal()
}

func (e *events) signal() {
	select {
	case e.added <- struct{}{}:
	default:
	}
}

// take takes an event, if there is one.
func (e *events) take() (nvme.Async, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.pending) == 0 {
		return 0, false
	}
	a := e.pending[0]
	e.pending = slices.Delete(e.pending, 0, 1)
	if len(e.pending) > 0 {
		e.signal()
	}
	return a, true
}

// Event waits for an asynchronous event. After nvme.AsyncNamespaceChanged, ChangedNamespaces tells
// which namespaces have changed, and re-enables the event. Namespace.Refresh then reads the new
// size. Events of the same value are reported once until they are taken. The error is that of ctx,
// or a LostError.
func (c *Controller) Event(ctx context.Context) (nvme.Async, error) {
	for {
		if a, ok := c.events.take(); ok {
			return a, nil
		}
		s, err := c.current()
		if err != nil {
			return 0, err
		}
		if added := c.events.added; c.clock.Virtual() {
			c.clock.Park(func() bool { return len(added) > 0 || wakeup.Closed(s.done) || ctx.Err() != nil })
			select { // these come before the end of ctx: the select below would choose at random
			case <-added:
				continue
			case <-s.done:
				continue
			default:
			}
		}
		select {
		case <-c.events.added:
		case <-s.done:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// requestEvents enables events, and sends Asynchronous Event Requests.
func (s *session) requestEvents() {
	events := s.identity.OAES & (nvme.AEAttribute | nvme.AEDiscovery)
	if events == 0 {
		return
	}
	ctx := context.Background()                                // the session's end ends the commands
	n := min(int(s.identity.AsyncLimit)+1, 4, s.admin.depth/2) // other commands need slots too
	if n == 0 {
		return
	}
	s.goroutines.Go(s.c.clock, func() {
		enable := nvme.Command{Opcode: nvme.SetFeatures, CDW10: uint32(nvme.FeatureAsyncEvents), CDW11: events}
		if _, err := s.admin.do(ctx, enable, nil, nil); err != nil {
			s.c.log.Warn("enable events", "error", err)
		}
		for range n {
			s.goroutines.Go(s.c.clock, func() {
				for {
					result, err := s.admin.do(ctx, nvme.Command{Opcode: nvme.AsyncEventRequest}, nil, nil)
					if err != nil {
						if s.reason() == nil {
							s.c.log.Warn("request events", "error", err)
						}
						return
					}
					s.c.log.Debug("event", "value", uint32(result))
					s.c.events.add(nvme.Async(uint32(result)))
				}
			})
		}
	})
}
