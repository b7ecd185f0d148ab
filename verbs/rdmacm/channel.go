package rdmacm

import (
	"context"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// EventChannel carries the events of any number of IDs on given devices (rdma_event_channel). The events of one ID are in
// the order in which they happened.
type EventChannel struct {
	devs []*verbs.Device

	notifier *wakeup.Notifier

	mu     sync.Mutex // taken after ID locks
	events []*Event
	ids    int
	dead   bool

	onEvent wakeup.Hook
}

// CreateEventChannel creates an event channel (rdma_create_event_channel). Its IDs use the given devices, and look for a
// route to a peer in their order. It fails with ErrNotSupported if the provider of a device does not implement Provider.
func CreateEventChannel(devs ...*verbs.Device) (*EventChannel, error) {
	const op = "create event channel"
	if len(devs) == 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "no device is given")
	}
	for _, d := range devs {
		if d == nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "a device is nil")
		}
		if _, ok := d.Provider().(Provider); !ok {
			return nil, verbs.Errorf(verbs.ErrNotSupported, op, "the provider of %s does not support rdma_cm", d.Name())
		}
	}
	return &EventChannel{devs: slices.Clone(devs), notifier: wakeup.New()}, nil
}

// provider returns the provider of d, whose type CreateEventChannel has checked.
func provider(d *verbs.Device) Provider { return d.Provider().(Provider) }

// Devices returns the channel's devices (rdma_get_devices).
func (c *EventChannel) Devices() []*verbs.Device { return slices.Clone(c.devs) }

// GetEvent waits for the next event and returns it (rdma_get_cm_event). Each event must be acknowledged with Event.Ack. The
// error is the context's, or ErrDestroyed.
func (c *EventChannel) GetEvent(ctx context.Context) (*Event, error) {
	const op = "get event"
	e, err := wakeup.Wait(ctx, c.notifier, c.take)
	switch {
	case err == wakeup.ErrClosed:
		return nil, verbs.Errorf(verbs.ErrDestroyed, op, "the event channel is destroyed")
	case err != nil:
		return nil, &verbs.Error{Op: op, Err: err}
	}
	return e, nil
}

// errNoEvent is what TryGetEvent returns most often.
var errNoEvent error = &verbs.Error{Op: "get event", Err: verbs.ErrAgain}

// TryGetEvent is GetEvent that does not wait: if there is no event, the error is verbs.ErrAgain. It is what rdma_get_cm_event
// is on a channel whose descriptor has O_NONBLOCK.
func (c *EventChannel) TryGetEvent() (*Event, error) {
	e, ok, _ := c.take()
	switch {
	case ok:
		return e, nil
	case c.notifier.Closed():
		return nil, verbs.Errorf(verbs.ErrDestroyed, "get event", "the event channel is destroyed")
	}
	return nil, errNoEvent
}

// OnEvent has f called whenever events are added to the channel, with their number. It is for programs that wait for
// something else than GetEvent, such as a descriptor that f writes to, and that take events with TryGetEvent. If n is
// negative, −n events were dropped, because their ID was destroyed or migrated. If there are events already, OnEvent itself
// calls f. A nil f ends the calls.
//
// f is called on the goroutine that adds the event, which may be the device's or the caller of a method of an ID, before that
// goes on. IDs and the channel are locked: f must not wait, and must not call a method of this package or of verbs. Calls for
// one channel are made one at a time, in the order of the changes; when OnEvent returns, the function of an earlier OnEvent
// is not running and will not be called.
func (c *EventChannel) OnEvent(f func(n int)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onEvent = f
	c.onEvent.Changed(len(c.events))
}

// Destroy destroys the channel (rdma_destroy_event_channel); calls of GetEvent return. It fails with ErrBusy while the
// channel has IDs.
func (c *EventChannel) Destroy() error {
	const op = "destroy event channel"
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.dead:
		return verbs.Errorf(verbs.ErrDestroyed, op, "it is destroyed already")
	case c.ids > 0:
		return verbs.Errorf(verbs.ErrBusy, op, "%d IDs use it", c.ids)
	}
	c.dead = true
	c.notifier.Close()
	return nil
}

// addID counts a new ID.
func (c *EventChannel) addID(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return verbs.Errorf(verbs.ErrDestroyed, op, "the event channel is destroyed")
	}
	c.ids++
	return nil
}

// add appends events to the queue.
func (c *EventChannel) add(events ...*Event) {
	if len(events) == 0 {
		return
	}
	c.mu.Lock()
	c.events = append(c.events, events...)
	c.onEvent.Changed(len(events))
	c.mu.Unlock()
	c.notifier.Notify()
}

// take removes the oldest event from the queue and returns it.
func (c *EventChannel) take() (e *Event, ok, more bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.events) == 0 {
		return nil, false, false
	}
	e, c.events[0] = c.events[0], nil
	c.events = c.events[1:]
	e.owner().unacked.add()
	if e.Type == ConnectRequest {
		e.ID.delivered.Store(true)
	}
	if e.Type == AddrChange {
		e.ID.addrChangeQueued.Store(false)
	}
	return e, true, len(c.events) > 0
}

// removeID undoes addID. It removes the ID's events from the queue and returns them.
func (c *EventChannel) removeID(id *ID) (out []*Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ids--
	var kept []*Event
	for _, e := range c.events {
		if e.owner() == id {
			out = append(out, e)
		} else {
			kept = append(kept, e)
		}
	}
	c.events = kept
	c.onEvent.Changed(-len(out))
	return out
}

// takeRequest removes the ConnectRequest for which id was created, and returns it to be acknowledged; nil if it is not in
// the queue.
func (c *EventChannel) takeRequest(id *ID) *Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := slices.IndexFunc(c.events, func(e *Event) bool { return e.Type == ConnectRequest && e.ID == id })
	if at < 0 {
		return nil
	}
	e := c.events[at]
	c.events = slices.Delete(c.events, at, at+1)
	c.onEvent.Changed(-1)
	e.owner().unacked.add()
	return e
}

// unackedCount counts the events of an ID that GetEvent has returned and that are not acknowledged. No other lock is taken
// while its lock is held.
type unackedCount struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed when n becomes 0; nil if no goroutine waits
}

func (t *unackedCount) add() {
	t.mu.Lock()
	t.n++
	t.mu.Unlock()
}

func (t *unackedCount) done() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.n--; t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

// wait waits until n is 0.
func (t *unackedCount) wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.mu.Unlock()
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
